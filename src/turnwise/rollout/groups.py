"""Many episodes at once: groups of one task each, all running side by side on one engine.

Invariant: an episode's seed is derived from (seed, place of its task, member), so any one of them can be replayed
alone; and the order of groups and members is that of the tasks asked for, whoever finishes first.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from turnwise.envs.base import Env
from turnwise.errors import EnvError, TurnwiseError
from turnwise.rollout.episode import Player, run_episode
from turnwise.seeds import derive_seed
from turnwise.types import Group, StopReason, Task, Trajectory

log = logging.getLogger(__name__)


async def run_groups(
    player: Player,
    env: Env,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    concurrency: int = 1024,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Group]:
    """Plays every task `group_size` times: `await run_groups(player, env, tasks, group_size=8, seed=0)`."""
    places = asyncio.Semaphore(concurrency)
    total, finished = len(tasks) * group_size, 0

    async def play(index: int, member: int) -> Trajectory:
        nonlocal finished
        episode_seed = derive_seed(seed, "luck", index, member)
        async with places:
            trajectory = await run_episode(
                player, env.spawn(), tasks[index], episode_seed=episode_seed, session=f"{seed}/{index}/{member}"
            )
        finished += 1
        progress(finished, total)
        return trajectory

    try:
        # Whatever the loop does that is not charged elsewhere is the environments' work.
        with player.ledger.spend("environment"):
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
    _report_failures(groups)
    return groups


def _first(errors: BaseExceptionGroup[TurnwiseError]) -> TurnwiseError:
    """A mistake usually shows in every episode at once; one line of it is enough."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _report_failures(groups: Sequence[Group]) -> None:
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [trajectory for trajectory in everyone if trajectory.stop is StopReason.ENV_FAILED]
    if failed and len(failed) == len(everyone):
        raise EnvError(f"every episode failed, the first in {failed[0].failure}; try `turnwise check`")
    if failed:
        log.warning("%d of %d episodes failed, the first in %s", len(failed), len(everyone), failed[0].failure)
