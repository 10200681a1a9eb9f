"""Tasks played by a fleet, as `run_groups` plays them in this process: for evaluations.

Invariant: the episodes have the seeds that they have in one process, and faults that settings plant strike none of
them.
"""

from collections.abc import Callable, Sequence

from turnwise.agents.decoding import Decoding
from turnwise.ledger import Ledger
from turnwise.rollout.failures import report_failures
from turnwise.rollout.fleet import Fleet, GroupJob
from turnwise.rollout.groups import run_together
from turnwise.types import Group, Task


async def fleet_groups(
    fleet: Fleet,
    decoding: Decoding,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    ledger: Ledger | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Group]:
    """Plays every task `group_size` times, on whichever workers have a place."""
    decoding = Decoding(**{name: getattr(decoding, name) for name in Decoding.model_fields})
    total, finished = len(tasks) * group_size, 0

    async def play(index: int, task: Task) -> Group:
        nonlocal finished
        job = GroupJob(task=task, group_size=group_size, seed=seed, index=index, decoding=decoding, faults=False)
        group = await fleet.play(job)
        finished += group_size
        progress(finished, total)
        return group

    with (ledger or Ledger()).spend("environment"):
        groups = await run_together([play(index, task) for index, task in enumerate(tasks)])
    report_failures([trajectory for group in groups for trajectory in group.trajectories])
    return groups
