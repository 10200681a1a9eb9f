"""What each step learns from: tasks drawn, played in groups, filtered, and refilled where the filter left too few.

Invariant: every episode that was sampled is in one rollout batch, whether it is learnt from or not; a batch follows
from the seed, the step, the weights and the task sampler's state alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from turnwise.agents.base import Agent
from turnwise.envs.base import Env
from turnwise.envs.mixture import EntryOptions, MixedTasks, Mixture
from turnwise.ledger import Ledger
from turnwise.rollout.groups import run_groups
from turnwise.rollout.limits import RolloutSettings
from turnwise.rollout.mixture_sampler import MixtureSampler
from turnwise.rollout.task_sampler import TaskSampler
from turnwise.seeds import derive_seed
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
    """Metrics of the task sampler: of a mixture, each environment's share and success."""

    @property
    def kept(self) -> list[Group]:
        """The groups to learn from; none, when the filter dropped them all."""
        return [self.groups[index] for index in self.selection.kept]

    def metrics(self) -> dict[str, float]:
        return {**self.selection.metrics(self.refills), **self.sampling}


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
    ) -> None:
        self.task_sampler = _make_sampler(env, tasks, settings, derive_seed(seed, "tasks"))
        self._agent, self._env, self._settings, self._seed, self._ledger = agent, env, settings, seed, ledger

    async def collect(
        self, step: int, select: GroupFilter, *, refill: int, progress: Callable[[int, int], None]
    ) -> RolloutBatch:
        """The batch of step 0, 1, ...: `groups_per_step` groups, and up to `refill` times as many more while `select`
        keeps too few."""
        began, wanted, refills = time.monotonic(), self._settings.groups_per_step, 0
        sampling = self.task_sampler.metrics()
        groups = await self._play(derive_seed(self._seed, "rollout", step), progress)
        selection = select(groups)
        while len(selection.kept) < wanted and refills < refill:
            refills += 1
            groups += await self._play(derive_seed(self._seed, "rollout", step, "refill", refills), progress)
            selection = select(groups, most=wanted)
        seconds = time.monotonic() - began
        return RolloutBatch(
            groups=tuple(groups), selection=selection, refills=refills, seconds=seconds, sampling=sampling
        )

    async def _play(self, seed: int, progress: Callable[[int, int], None]) -> list[Group]:
        indices = self.task_sampler.draw(self._settings.groups_per_step)
        tasks = [self.task_sampler.task(index) for index in indices]
        groups = await run_groups(
            self._agent,
            self._env,
            tasks,
            group_size=[self._group_size(task) for task in tasks],
            seed=seed,
            limits=self._settings,
            concurrency=self._settings.concurrency,
            max_failures=self._settings.max_failures,
            ledger=self._ledger,
            progress=progress,
        )
        self.task_sampler.learn(indices, groups)
        return groups

    def _group_size(self, task: Task) -> int:
        entry: EntryOptions | None = self._env.entry_of(task) if isinstance(self._env, Mixture) else None
        return (entry.group_size if entry is not None else None) or self._settings.group_size


def _make_sampler(
    env: Env, tasks: Sequence[Task], settings: RolloutSettings, seed: int
) -> TaskSampler | MixtureSampler:
    def sample(tasks: Sequence[Task], seed: int) -> TaskSampler:
        return TaskSampler(tasks, rule=settings.task_sampler, replay=settings.replay, seed=seed)

    if not isinstance(env, Mixture):
        return sample(tasks, seed)
    assert isinstance(tasks, MixedTasks), "a mixture is played on its own tasks"
    samplers = {name: sample(part, derive_seed(seed, name)) for name, part in tasks.parts.items()}
    return MixtureSampler(samplers, env.entries, rule=env.sampling)
