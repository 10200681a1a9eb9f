"""Many episodes at once: groups of one task each, all running side by side, for any agent.

Invariant: an episode's seed is derived from (seed, index of its task, member), so any one of them can be replayed
alone; groups and members are in the order of the tasks, in whatever order they finish.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from turnwise.agents.base import Agent
from turnwise.envs.base import Env
from turnwise.errors import EnvError, TurnwiseError
from turnwise.ledger import Ledger
from turnwise.rollout.episode import run_episode
from turnwise.rollout.limits import Limits
from turnwise.seeds import derive_seed
from turnwise.types import Group, StopReason, Task, Trajectory

log = logging.getLogger(__name__)


async def run_groups(
    agent: Agent,
    env: Env,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    limits: Limits | None = None,
    concurrency: int = 1024,
    ledger: Ledger | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Group]:
    """Plays every task `group_size` times: `await run_groups(agent, env, tasks, group_size=8, seed=0)`.

    As many episodes are under way at once as `concurrency` and the agent's own allow.
    """
    places = asyncio.Semaphore(min(concurrency, agent.concurrency or concurrency))
    total, finished = len(tasks) * group_size, 0

    async def play(index: int, member: int) -> Trajectory:
        nonlocal finished
        episode_seed = derive_seed(seed, "luck", index, member)
        async with places:
            trajectory = await run_episode(
                agent,
                env.spawn(),
                tasks[index],
                episode_seed=episode_seed,
                limits=limits,
                session=f"{seed}/{index}/{member}",
            )
        finished += 1
        progress(finished, total)
        return trajectory

    try:
        # Whatever runs in the event loop and is not charged elsewhere is environment code.
        with (ledger or Ledger()).spend("environment"):
            async with asyncio.TaskGroup() as running:
                plays = [
                    [running.create_task(play(index, member)) for member in range(group_size)]
                    for index in range(len(tasks))
                ]
    except BaseExceptionGroup as errors:
        mistakes = errors.subgroup(TurnwiseError)
        if mistakes is None:
            raise
        raise _first(mistakes) from None
    groups = [
        Group(task=task, trajectories=tuple(member.result() for member in members))
        for task, members in zip(tasks, plays, strict=True)
    ]
    report_failures([trajectory for group in groups for trajectory in group.trajectories], "episode")
    return groups


def _first(errors: BaseExceptionGroup[TurnwiseError]) -> TurnwiseError:
    """A mistake usually shows in every episode at once; one line of it is enough."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def report_failures(trajectories: Sequence[Trajectory], what: str) -> None:
    """Warns of failed episodes, and raises where all of them failed; `what` they are called: `episode`."""
    failed = [trajectory for trajectory in trajectories if trajectory.stop is StopReason.ENV_FAILED]
    if failed and len(failed) == len(trajectories):
        raise EnvError(f"every {what} failed, the first in {failed[0].failure}; try `turnwise check`")
    if failed:
        log.warning("%d of %d %ss failed, the first in %s", len(failed), len(trajectories), what, failed[0].failure)
