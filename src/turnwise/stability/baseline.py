"""What one vital is while the run is well, what it is now, and how surely it is sinking.

Invariant: levels are medians and no step counts for more than a few deviations, so no single step moves anything far;
the baseline follows better values soon and worse ones slowly, so that a slow decline is measured against what it
declined from, and it follows no noise upwards.

Source of the decline: Page, Continuous Inspection Schemes (Biometrika 41, 1954): a cumulative sum sees a small loss
that lasts sooner than a window does, at the same rate of false alarms.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

Better: TypeAlias = Literal["higher", "lower", "neither"]

_FEWEST = 3
"""Values that make a median worth the name."""
_LEAST_SPREAD = 0.05
"""The spread of a vital is taken to be this share of it at the least: a few equal values do not promise more."""
_TO_DEVIATION = 1.4826 / math.sqrt(2)
"""From the median distance between neighbouring values to the deviation of one, if they are normal."""
_MEAN_TO_DEVIATION = math.sqrt(math.pi) / 2
"""The same for the mean distance."""
_MEMORY = 30
"""Steps over which the spread is an average, once there are as many."""
_WILD = 3.0
"""Deviations beyond which a step counts as if it were no further off."""
_NOISE = 1.0
"""Deviations by which a median must be better before the baseline follows it soon: the better half of mere noise would
else lift it step by step."""
DEEPEST = 15.0
"""The most that a decline sums up to, so that a run that has come back is believed within some twenty steps."""


class Baseline:
    """The healthy level of one vital, its spread from step to step, its newest values, and its decline."""

    def __init__(
        self, better: Better, *, steps: int, window: int, follow_better: float, follow_worse: float, allowance: float
    ) -> None:
        self._better, self._steps, self._window = better, steps, window
        self._follow_better, self._follow_worse, self._allowance = follow_better, follow_worse, allowance
        self.recent: deque[float] = deque(maxlen=window)
        self.centre = 0.0
        self.decline = 0.0
        """Deviations below the baseline, each step's beyond the allowance, summed up for as long as that is above 0."""
        self._spread = 0.0
        self._age = 0
        self._first: list[float] | None = []

    def add(self, value: float | None) -> None:
        """A step's value, or None when the step could not tell."""
        self._age += 1
        if value is None:
            return
        self.recent.append(value)
        if self._first is None:
            self._weigh(value)
            return
        self._first.append(value)
        if self._age >= self._steps and len(self._first) >= min(_FEWEST, self._steps):
            self.centre = statistics.median(self._first)
            self._spread = _TO_DEVIATION * _median_distance(self._first)
            self._first = None

    def follow(self) -> None:
        """Moves towards the newest values; to be asked only while the run is well."""
        if not self.ready:
            return
        gain = {"higher": self.now - self.centre, "lower": self.centre - self.now, "neither": 0.0}[self._better]
        rate = self._follow_better if gain > _NOISE * self.spread else self._follow_worse
        self.centre += rate * (self.now - self.centre)
        if len(self.recent) > 1:
            step = _MEAN_TO_DEVIATION * abs(self.recent[-1] - self.recent[-2])
            self._spread += (min(step, _WILD * (self.spread or step)) - self._spread) / min(self._age, _MEMORY)

    @property
    def ready(self) -> bool:
        """There is a baseline, and enough newer values to compare with it."""
        return self._first is None and len(self.recent) >= min(_FEWEST, self._window)

    @property
    def now(self) -> float:
        return statistics.median(self.recent)

    @property
    def spread(self) -> float:
        return max(self._spread, _LEAST_SPREAD * abs(self.centre))

    def forget_recent(self) -> None:
        """What the newest values were says nothing of those to come."""
        self.recent.clear()
        self.decline = 0.0

    def begin_again(self) -> None:
        """What is measured has changed its scale: learn a new baseline."""
        self.forget_recent()
        self._age, self._first = 0, []

    def state_dict(self) -> dict[str, object]:
        return {
            "recent": list(self.recent),
            "centre": self.centre,
            "decline": self.decline,
            "spread": self._spread,
            "age": self._age,
            "first": None if self._first is None else list(self._first),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        recent, centre, decline, spread, age, first = (state[name] for name in self.state_dict())
        assert isinstance(recent, list)
        assert isinstance(centre, float)
        assert isinstance(decline, float)
        assert isinstance(spread, float)
        assert isinstance(age, int)
        assert first is None or isinstance(first, list)
        self.recent = deque(recent, maxlen=self._window)
        self.centre, self.decline, self._spread, self._age = centre, decline, spread, age
        self._first = None if first is None else list(first)

    def _weigh(self, value: float) -> None:
        """Adds what this step lost to the decline; a step within the allowance, or above, takes away from it."""
        if self.spread == 0:
            return
        lost = min((self.centre - value) / self.spread, _WILD) - self._allowance
        self.decline = min(max(0.0, self.decline + lost), DEEPEST)


def _median_distance(values: Sequence[float]) -> float:
    """Between neighbours, so that a trend is not taken for noise; a single value has no distance."""
    return statistics.median([abs(after - before) for before, after in pairwise(values)] or [0.0])
