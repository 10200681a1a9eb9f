"""Which items a step works on: tasks of a training step, demonstrations of SFT.

Invariant: what is drawn follows from the seed, the draws before and the success rates seen, all of it in `state_dict`,
so a resumed run draws what the unbroken one would have.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Group, StopReason, Task

T = TypeVar("T")

TaskRule: TypeAlias = Literal["uniform", "curriculum", "hard"]

_NEWEST_WEIGHT = 0.5
"""The weight of a task's newest success rate in its moving average: the policy that made older ones is gone."""
_MIN_WEIGHT = 0.05
"""The least weight of a task, so that every task seen can be drawn again."""


class Shuffled(Generic[T]):
    """Goes through all items in a random order, then through all again in another."""

    def __init__(self, items: Sequence[T], *, per_step: int, seed: int) -> None:
        if not len(items):
            raise EnvError("there is nothing to sample: give the environment tasks, or pass tasks=[...]")
        self._items, self._per_step, self._seed = items, per_step, seed
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def draw(self, step: int) -> list[T]:
        """The items of step 0, 1, ...: `per_step` of them."""
        size = len(self._items)
        places = range(step * self._per_step, (step + 1) * self._per_step)
        return [self._items[int(self._order(place // size)[place % size])] for place in places]

    def _shuffle(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng(derive_seed(self._seed, "epoch", epoch)).permutation(len(self._items))


class TaskSampler:
    """Draws the tasks to play: in a shuffled order, and by the rules `curriculum` and `hard` also replays some.

    `curriculum` replays what is solved sometimes, best half of the time (weight p (1 − p) of a success rate p);
    `hard` replays what is seldom solved (weight 1 − p). Both go by the environment's metric `success`.
    """

    def __init__(self, tasks: Sequence[Task], *, rule: TaskRule, replay: float, seed: int) -> None:
        self._tasks, self._rule, self._seed = tasks, rule, seed
        self._replay = 0.0 if rule == "uniform" else replay
        self._fresh = Shuffled(range(len(tasks)), per_step=1, seed=seed)
        self._position = 0
        self._draws = 0
        self._rates: dict[int, float] = {}

    def draw(self, count: int) -> list[int]:
        """The indices of the next `count` tasks, replayed ones last."""
        replayed = self._draw_replays(round(count * self._replay))
        fresh = [self._fresh.draw(self._position + place)[0] for place in range(count - len(replayed))]
        self._position += len(fresh)
        self._draws += 1
        return fresh + replayed

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, place: int) -> Task:
        return self._tasks[place]

    def metrics(self) -> dict[str, float]:
        """Metrics of what is drawn next: none, of one environment."""
        return {}

    def learn(self, places: Sequence[int], groups: Sequence[Group]) -> None:
        """Updates the success rate of each task that was played; `uniform` keeps none."""
        if self._rule == "uniform":
            return
        for place, group in zip(places, groups, strict=True):
            played = [t.success for t in group.trajectories if t.stop is not StopReason.ENV_FAILED]
            if played:
                rate = sum(played) / len(played)
                self._rates[place] = _NEWEST_WEIGHT * rate + (1 - _NEWEST_WEIGHT) * self._rates.get(place, rate)

    def state_dict(self) -> dict[str, object]:
        return {"position": self._position, "draws": self._draws, "rates": dict(self._rates)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        position, draws, rates = state["position"], state["draws"], state["rates"]
        assert isinstance(position, int)
        assert isinstance(draws, int)
        assert isinstance(rates, dict)
        self._position, self._draws, self._rates = position, draws, dict(rates)

    def _draw_replays(self, count: int) -> list[int]:
        known = sorted(self._rates)
        count = min(count, len(known))
        if not count:
            return []
        rate = np.array([self._rates[place] for place in known])  # [known]
        weight = _MIN_WEIGHT + (rate * (1 - rate) if self._rule == "curriculum" else 1 - rate)  # [known]
        rng = np.random.default_rng(derive_seed(self._seed, "again", self._draws))
        chosen = rng.choice(len(known), size=count, replace=False, p=weight / weight.sum())  # [count]
        return [known[int(place)] for place in chosen]
