"""Many episodes at once: groups of one task each, all running side by side, for any agent.

Invariant: an episode's seed is derived from (seed, index of its task, member), so any one of them can be replayed
alone; groups and members are in the order of the tasks, in whatever order they finish.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar

from turnwise.agents.base import Agent
from turnwise.envs.base import Env
from turnwise.errors import TurnwiseError
from turnwise.ledger import Ledger
from turnwise.rollout.boundary import leaving_behind
from turnwise.rollout.episode import play_episode
from turnwise.rollout.failures import report_failures
from turnwise.rollout.limits import CONCURRENCY, Limits, limits_for
from turnwise.seeds import derive_seed
from turnwise.tools.watchdog import watching
from turnwise.types import Group, Task, Trajectory

T = TypeVar("T")


async def run_groups(
    agent: Agent,
    env: Env,
    tasks: Sequence[Task],
    *,
    group_size: int | Sequence[int],
    seed: int,
    limits: Limits | None = None,
    concurrency: int = CONCURRENCY,
    max_failures: float | None = None,
    ledger: Ledger | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Group]:
    """Plays every task `group_size` times: `await run_groups(agent, env, tasks, group_size=8, seed=0)`.

    `group_size` is one for all tasks, or one for each. As many episodes are under way at once as `concurrency` and the
    agent's own allow. It is an EnvError when all of them fail, or more than the share `max_failures`, if one is given.
    """
    places = asyncio.Semaphore(min(concurrency, agent.concurrency or concurrency))
    sizes = [group_size] * len(tasks) if isinstance(group_size, int) else list(group_size)
    total, finished = sum(sizes), 0

    def count() -> None:
        nonlocal finished
        finished += 1
        progress(finished, total)

    plays = [
        play_group(
            agent,
            env,
            task,
            group_size=size,
            seed=seed,
            index=index,
            limits=limits or Limits(),
            places=places,
            on_episode=count,
        )
        for index, (task, size) in enumerate(zip(tasks, sizes, strict=True))
    ]
    # Whatever runs in the event loop and is not charged elsewhere is environment code.
    with (ledger or Ledger()).spend("environment"), watching():
        groups = await run_together(plays)
    report_failures([trajectory for group in groups for trajectory in group.trajectories], most=max_failures)
    return groups


async def play_group(
    agent: Agent,
    env: Env,
    task: Task,
    *,
    group_size: int,
    seed: int,
    index: int,
    limits: Limits,
    places: asyncio.Semaphore,
    on_episode: Callable[[], None] = lambda: None,
) -> Group:
    """Plays one task `group_size` times, each episode when there is a place for it."""

    async def play(member: int) -> Trajectory:
        start = partial(
            play_episode,
            agent,
            env.spawn_for(task),
            task,
            episode_seed=derive_seed(seed, "luck", index, member),
            limits=limits_for(env, task, limits),
            session=f"{seed}/{index}/{member}",
        )
        trajectory = await leaving_behind(lambda leave: _in_place(places, start, leave))
        on_episode()
        return trajectory

    return Group(task=task, trajectories=tuple(await run_together([play(member) for member in range(group_size)])))


async def run_together(plays: Sequence[Coroutine[object, object, T]]) -> list[T]:
    """Runs all at once and returns their results in order; the first mistake of the user's ends them all."""
    try:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(play) for play in plays]
    except BaseExceptionGroup as errors:
        mistakes = errors.subgroup(TurnwiseError)
        if mistakes is None:
            raise
        raise _first(mistakes) from None
    return [task.result() for task in tasks]


async def _in_place(
    places: asyncio.Semaphore,
    start: Callable[..., Coroutine[object, object, Trajectory]],
    leave: Callable[[Trajectory], None],
) -> Trajectory:
    """Plays when there is a place, which is free again afterwards, and also when the episode is left behind."""
    left = False

    def leave_place(trajectory: Trajectory) -> None:
        nonlocal left
        left = True
        places.release()
        leave(trajectory)

    await places.acquire()
    try:
        return await start(leave=leave_place)
    finally:
        if not left:
            places.release()


def _first(errors: BaseExceptionGroup[TurnwiseError]) -> TurnwiseError:
    """A mistake usually shows in every episode at once; one line of it is enough."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
