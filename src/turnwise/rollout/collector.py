"""What each step learns from: tasks drawn, played in groups, filtered, and refilled where the filter left too few.

Invariant: every episode that was sampled is in one rollout batch, whether it is learnt from or not; a batch follows
from the seed, the step, the weights and the task sampler's state alone.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from turnwise.agents.base import Agent
from turnwise.agents.decoding import Decoding
from turnwise.envs.base import Env
from turnwise.envs.mixture import EntryOptions, MixedTasks, Mixture
from turnwise.ledger import Ledger
from turnwise.rollout.failures import report_failures
from turnwise.rollout.fleet import Fleet, GroupJob, LocalWorker
from turnwise.rollout.groups import run_together
from turnwise.rollout.limits import RolloutSettings
from turnwise.rollout.mixture_sampler import MixtureSampler
from turnwise.rollout.task_sampler import TaskSampler
from turnwise.seeds import derive_seed
from turnwise.tools.watchdog import watching
from turnwise.types import Group, Task


class Selection(Protocol):
    """Which groups a filter kept."""

    @property
    def kept(self) -> tuple[int, ...]:
        """The indices of the groups to learn from, ascending."""
        ...

    def metrics(self, refills: int) -> dict[str, float]:
        """Metrics of the filter, after `refills` rounds of further tasks."""
        ...


class GroupFilter(Protocol):
    """Chooses the groups to learn from, and no more than `most` of them."""

    def __call__(self, groups: Sequence[Group], *, most: int | None = None) -> Selection: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The groups sampled for one step."""

    groups: tuple[Group, ...]
    """All of them, refills included."""
    selection: Selection
    refills: int
    """Rounds of further tasks that were sampled."""
    seconds: float
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the task sampler (of a mixture, each environment's share and success) and of the fleet."""

    @property
    def kept(self) -> list[Group]:
        """The groups to learn from; none, when the filter dropped them all."""
        return [self.groups[index] for index in self.selection.kept]

    def metrics(self) -> dict[str, float]:
        return {**self.selection.metrics(self.refills), **self.sampling}


async def fill_batch(
    play: Callable[[int], Awaitable[list[Group]]],
    select: GroupFilter,
    *,
    wanted: int,
    refill: int,
    sampling: Mapping[str, float],
) -> RolloutBatch:
    """The groups of round 0, and of rounds 1, 2, ... up to `refill` while `select` keeps fewer than `wanted`."""
    began, refills = time.monotonic(), 0
    groups = await play(0)
    selection = select(groups)
    while len(selection.kept) < wanted and refills < refill:
        refills += 1
        groups += await play(refills)
        selection = select(groups, most=wanted)
    return RolloutBatch(
        groups=tuple(groups),
        selection=selection,
        refills=refills,
        seconds=time.monotonic() - began,
        sampling=sampling,
    )


def _name_refill(number: int) -> tuple[int | str, ...]:
    return ("refill", number) if number else ()


class RolloutCollector:
    """Plays tasks for the learner; `task_sampler` draws them."""

    def __init__(
        self,
        agent: Agent,
        env: Env,
        tasks: Sequence[Task],
        settings: RolloutSettings,
        *,
        seed: int,
        ledger: Ledger | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        """Without a `fleet`, the agent plays in this process."""
        self.task_sampler = make_task_sampler(env, tasks, settings, derive_seed(seed, "tasks"))
        self._env, self._settings, self._seed, self._ledger = env, settings, seed, ledger or Ledger()
        self._progress = _Progress()
        self._counts_episodes = fleet is None
        self.fleet = fleet or Fleet(
            [LocalWorker(agent, env, settings, concurrency=settings.concurrency, on_episode=self._progress.advance)]
        )

    async def collect(
        self, step: int, select: GroupFilter, *, refill: int, progress: Callable[[int, int], None]
    ) -> RolloutBatch:
        """The batch of step 0, 1, ...: `groups_per_step` groups, and up to `refill` times as many more while `select`
        keeps too few."""
        batch = await fill_batch(
            lambda number: self._play(derive_seed(self._seed, "rollout", step, *_name_refill(number)), progress),
            select,
            wanted=self._settings.groups_per_step,
            refill=refill,
            sampling=self.task_sampler.metrics(),
        )
        return replace(batch, sampling={**batch.sampling, **self.fleet.metrics()})

    async def _play(self, seed: int, progress: Callable[[int, int], None]) -> list[Group]:
        places = self.task_sampler.draw(self._settings.groups_per_step)
        jobs = [
            make_job(self._env, self.task_sampler.task(place), self._settings, seed=seed, index=index)
            for index, place in enumerate(places)
        ]
        self._progress.begin(sum(job.group_size for job in jobs), progress)
        # Whatever runs in the event loop and is not charged elsewhere is environment code.
        with self._ledger.spend("environment"), watching():
            groups = await run_together([self._play_job(job) for job in jobs])
        report_failures([one for group in groups for one in group.trajectories], most=self._settings.max_failures)
        self.task_sampler.learn(places, groups)
        return groups

    async def _play_job(self, job: GroupJob) -> Group:
        group = await self.fleet.play(job)
        if not self._counts_episodes:
            self._progress.advance(job.group_size)
        return group


class _Progress:
    """Counts the episodes of one round."""

    def __init__(self) -> None:
        self.begin(0, lambda done, total: None)

    def begin(self, total: int, show: Callable[[int, int], None]) -> None:
        self._done, self._total, self._show = 0, total, show

    def advance(self, episodes: int = 1) -> None:
        self._done += episodes
        self._show(self._done, self._total)


def make_job(env: Env, task: Task, settings: RolloutSettings, *, seed: int, index: int) -> GroupJob:
    """A training job of a task, of the size its environment has in a mixture or else the rollout's."""
    entry: EntryOptions | None = env.entry_of(task) if isinstance(env, Mixture) else None
    group_size = (entry.group_size if entry is not None else None) or settings.group_size
    decoding = Decoding(**{name: getattr(settings, name) for name in Decoding.model_fields})
    return GroupJob(task=task, group_size=group_size, seed=seed, index=index, decoding=decoding)


def make_task_sampler(
    env: Env, tasks: Sequence[Task], settings: RolloutSettings, seed: int
) -> TaskSampler | MixtureSampler:
    """What draws the tasks of training; of a mixture, also the environments."""

    def sample(tasks: Sequence[Task], seed: int) -> TaskSampler:
        return TaskSampler(tasks, rule=settings.task_sampler, replay=settings.replay, seed=seed)

    if not isinstance(env, Mixture):
        return sample(tasks, seed)
    assert isinstance(tasks, MixedTasks), "a mixture is played on its own tasks"
    samplers = {name: sample(part, derive_seed(seed, name)) for name, part in tasks.parts.items()}
    return MixtureSampler(samplers, env.entries, rule=env.sampling)
