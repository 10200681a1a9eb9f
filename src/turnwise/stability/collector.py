"""What each step learns from: tasks drawn, played in groups, filtered, and refilled where the filter left too few.

Invariant: every episode that was sampled is in a lot, whether it is learnt from or not, and none is in two; a lot
follows from the seed, the step, the weights and the sampler's state alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.envs.base import Env
from turnwise.rollout import Player, RolloutSettings, TaskSampler, run_groups
from turnwise.seeds import derive_seed
from turnwise.stability.filters import FilterSettings, Selection, select
from turnwise.types import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """What was sampled for one step."""

    groups: tuple[Group, ...]
    """All of it, refills included."""
    selection: Selection
    refills: int
    """How many times more tasks were sampled."""
    seconds: float

    @property
    def kept(self) -> list[Group]:
        """The groups to learn from; none, when the filter dropped them all."""
        return [self.groups[place] for place in self.selection.kept]

    def metrics(self) -> dict[str, float]:
        return self.selection.metrics(self.refills)


class Supply:
    """Plays tasks for the learner; `sampler` says which come next."""

    def __init__(
        self, player: Player, env: Env, tasks: Sequence[Task], settings: RolloutSettings, *, seed: int
    ) -> None:
        self.sampler = TaskSampler(
            tasks, rule=settings.sampler, replay=settings.replay, seed=derive_seed(seed, "tasks")
        )
        self._player, self._env, self._settings, self._seed = player, env, settings, seed

    async def sample(self, step: int, filter: FilterSettings, progress: Callable[[int, int], None]) -> Lot:
        """The lot of step 0, 1, ...: as many tasks as a step has, and more while the filter leaves too few."""
        began, wanted, refills = time.monotonic(), self._settings.groups_per_step, 0
        groups = await self._play(derive_seed(self._seed, "rollout", step), progress)
        selection = select(groups, filter)
        while len(selection.kept) < wanted and refills < filter.refill:
            refills += 1
            groups += await self._play(derive_seed(self._seed, "rollout", step, "refill", refills), progress)
            selection = select(groups, filter, most=wanted)
        seconds = time.monotonic() - began
        return Lot(groups=tuple(groups), selection=selection, refills=refills, seconds=seconds)

    async def _play(self, seed: int, progress: Callable[[int, int], None]) -> list[Group]:
        places = self.sampler.draw(self._settings.groups_per_step)
        groups = await run_groups(
            self._player,
            self._env,
            [self.sampler.task(place) for place in places],
            group_size=self._settings.group_size,
            seed=seed,
            concurrency=self._settings.concurrency,
            progress=progress,
        )
        self.sampler.learn(places, groups)
        return groups
