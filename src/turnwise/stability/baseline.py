"""What one vital is while the run is well, and what it is now.

Invariant: both are medians, so no single step moves either far; the baseline follows better values soon and worse ones
slowly, so that a slow decline is measured against what it declined from.
"""

import statistics
from collections import deque
from collections.abc import Mapping
from typing import Literal, TypeAlias

Better: TypeAlias = Literal["higher", "lower", "neither"]

_FEWEST = 3
"""Values that make a median worth the name."""
_LEAST_SPREAD = 0.05
"""The spread of a vital is taken to be this share of it at the least: a few equal values do not promise more."""
_TO_DEVIATION = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


class Baseline:
    """The healthy level of one vital, its spread from step to step, and its newest values."""

    def __init__(self, better: Better, *, steps: int, window: int, follow_better: float, follow_worse: float) -> None:
        self._better, self._steps, self._window = better, steps, window
        self._follow_better, self._follow_worse = follow_better, follow_worse
        self.recent: deque[float] = deque(maxlen=window)
        self.centre = 0.0
        self._spread = 0.0
        self._age = 0
        self._first: list[float] | None = []

    def add(self, value: float | None) -> None:
        """A step's value, or None when the step could not tell."""
        self._age += 1
        if value is None:
            return
        self.recent.append(value)
        if self._first is not None:
            self._first.append(value)
            if self._age >= self._steps and len(self._first) >= min(_FEWEST, self._steps):
                self.centre = statistics.median(self._first)
                self._spread = _TO_DEVIATION * statistics.median(abs(one - self.centre) for one in self._first)
                self._first = None

    def follow(self) -> None:
        """Moves towards the newest values; to be asked only while the run is well."""
        if not self.ready:
            return
        improves = {"higher": self.now > self.centre, "lower": self.now < self.centre, "neither": False}
        self.centre += (self._follow_better if improves[self._better] else self._follow_worse) * (
            self.now - self.centre
        )
        self._spread += self._follow_worse * (_TO_DEVIATION * abs(self.recent[-1] - self.now) - self._spread)

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

    def begin_again(self) -> None:
        """What is measured has changed its scale: learn a new baseline."""
        self.recent.clear()
        self._age, self._first = 0, []

    def state_dict(self) -> dict[str, object]:
        return {
            "recent": list(self.recent),
            "centre": self.centre,
            "spread": self._spread,
            "age": self._age,
            "first": None if self._first is None else list(self._first),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        recent, centre, spread, age, first = (state[n] for n in ("recent", "centre", "spread", "age", "first"))
        assert isinstance(recent, list)
        assert isinstance(centre, float)
        assert isinstance(spread, float)
        assert isinstance(age, int)
        assert first is None or isinstance(first, list)
        self.recent = deque(recent, maxlen=self._window)
        self.centre, self._spread, self._age = centre, spread, age
        self._first = None if first is None else list(first)
