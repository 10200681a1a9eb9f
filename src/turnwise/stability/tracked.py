"""One health metric over time: its level while the run was healthy, its level now, its noise, its decline and its rise.

Invariant: levels are medians and a single step counts for a few standard deviations at most, so no step moves anything
far. The healthy level follows better values soon and worse ones slowly: a slow decline is measured against the level it
declined from, and noise does not lift it.

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

_MIN_VALUES = 3
"""Values needed for a median."""
_MIN_NOISE = 0.05
"""Lower bound of the noise, as a share of the healthy level: a few equal values do not prove that there is none."""
_MEDIAN_TO_STD = 1.4826 / math.sqrt(2)
"""From the median distance between neighbouring values to the standard deviation of one, if they are normal."""
_MEAN_TO_STD = math.sqrt(math.pi) / 2
"""The same for the mean distance."""
_NOISE_MEMORY = 30
"""Steps that the noise is averaged over."""
_MAX_DEVIATIONS = 3.0
"""One step counts for at most this many standard deviations."""
_CLEARLY_BETTER = 1.0
"""Standard deviations by which the median must be better before the healthy level follows it fast: the better half of
mere noise would otherwise lift the level step by step."""
MAX_DECLINE = 15.0
"""Upper bound of the decline, so that a run that recovers is believed within some twenty steps; and of the rise."""


class TrackedMetric:
    """Follows one health metric: `tracked.healthy` is its reference level, `tracked.now` the median of recent steps."""

    def __init__(
        self,
        better: Better,
        *,
        calibration_steps: int,
        window: int,
        follow_better: float = 0.1,
        follow_worse: float = 0.01,
        allowance: float = 0.75,
    ) -> None:
        """Args:
        better: Which direction is an improvement.
        calibration_steps: Steps whose median is the first healthy level.
        window: Recent steps whose median is the level now.
        follow_better: How fast the healthy level follows better values.
        follow_worse: How fast it follows worse ones, while the metric shows no sign.
        allowance: Standard deviations a step may lie below the healthy level before it adds to the decline.
        """
        self._better, self._calibration_steps, self._window = better, calibration_steps, window
        self._follow_better, self._follow_worse, self._allowance = follow_better, follow_worse, allowance
        self.recent: deque[float] = deque(maxlen=window)
        self.healthy = 0.0
        self.decline = 0.0
        """Cumulative sum of standard deviations below the healthy level, each step's beyond the allowance."""
        self.rise = 0.0
        """The same above the first healthy level, which does not follow: what the run has gained since calibration."""
        self._first = 0.0
        self._noise = 0.0
        self._age = 0
        self._calibrated = False
        """There is a healthy level."""
        self._calibration: list[float] | None = []
        """Values so far of the steps that calibrate; None after them."""

    def add(self, value: float | None) -> None:
        """A step's value, or None when the step has none."""
        self._age += 1
        if value is None:
            return
        self.recent.append(value)
        if self._calibrated:
            self._add_to_decline(value)
        if self._calibration is None:
            self._add_to_rise(value)
        else:
            self._calibrate(value, self._calibration)

    def _calibrate(self, value: float, calibration: list[float]) -> None:
        calibration.append(value)
        enough = len(calibration) >= min(_MIN_VALUES, self._calibration_steps)
        if self._age < self._calibration_steps or not enough:
            return
        self._first = statistics.median(calibration)
        if not self._calibrated:
            self.healthy = self._first
            self._noise = _MEDIAN_TO_STD * _median_distance(calibration)
        self._calibrated, self._calibration = True, None

    def follow(self) -> None:
        """Moves the healthy level towards recent values; called only while the metric shows no sign."""
        if not self.ready:
            return
        gain = {"higher": self.now - self.healthy, "lower": self.healthy - self.now, "neither": 0.0}[self._better]
        rate = self._follow_better if gain > _CLEARLY_BETTER * self.noise else self._follow_worse
        self.healthy += rate * (self.now - self.healthy)
        if len(self.recent) > 1:
            step = _MEAN_TO_STD * abs(self.recent[-1] - self.recent[-2])
            bounded = min(step, _MAX_DEVIATIONS * (self.noise or step))
            self._noise += (bounded - self._noise) / min(self._age, _NOISE_MEMORY)

    @property
    def ready(self) -> bool:
        """There is a healthy level, and enough recent values to compare with it."""
        return self._calibrated and len(self.recent) >= min(_MIN_VALUES, self._window)

    @property
    def now(self) -> float:
        return statistics.median(self.recent)

    @property
    def noise(self) -> float:
        """Standard deviation from step to step."""
        return max(self._noise, _MIN_NOISE * abs(self.healthy))

    def recalibrate(self, *, keep_level: bool = False) -> None:
        """Drops recent values, the decline and the rise, which begins at the next steps' median; the healthy level is
        learnt anew from them, too, unless it is kept."""
        self.recent.clear()
        self.decline = self.rise = 0.0
        self._age, self._calibration = 0, []
        self._calibrated = self._calibrated and keep_level

    def state_dict(self) -> dict[str, object]:
        return {
            "recent": list(self.recent),
            "healthy": self.healthy,
            "decline": self.decline,
            "noise": self._noise,
            "age": self._age,
            "calibration": None if self._calibration is None else list(self._calibration),
            "calibrated": self._calibrated,
            "first": self._first,
            "rise": self.rise,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        # A checkpoint may be older than the rise, whose best guess then begins at the level that it has.
        older = {"calibrated": state["calibration"] is None, "first": state["healthy"], "rise": 0.0}
        known = (older | dict(state)).__getitem__
        recent, healthy, decline, noise, age, calibration, calibrated, first, rise = map(known, self.state_dict())
        assert isinstance(recent, list)
        assert isinstance(healthy, float)
        assert isinstance(decline, float)
        assert isinstance(noise, float)
        assert isinstance(age, int)
        assert calibration is None or isinstance(calibration, list)
        assert isinstance(calibrated, bool)
        assert isinstance(first, float)
        assert isinstance(rise, float)
        self._calibrated, self._first, self.rise = calibrated, first, rise
        self.recent = deque(recent, maxlen=self._window)
        self.healthy, self.decline, self._noise, self._age = healthy, decline, noise, age
        self._calibration = None if calibration is None else list(calibration)

    def _add_to_decline(self, value: float) -> None:
        """A step within the allowance, or above the healthy level, lowers the sum again."""
        if self.noise == 0:
            return
        lost = min((self.healthy - value) / self.noise, _MAX_DEVIATIONS) - self._allowance
        self.decline = min(max(0.0, self.decline + lost), MAX_DECLINE)

    def _add_to_rise(self, value: float) -> None:
        """Where nothing has ever varied, as in a run without any success yet, the first gain counts in full."""
        gain = value - self._first
        deviations = gain / self.noise if self.noise else math.copysign(_MAX_DEVIATIONS, gain) if gain else 0.0
        gained = max(-_MAX_DEVIATIONS, min(deviations, _MAX_DEVIATIONS)) - self._allowance
        self.rise = min(max(0.0, self.rise + gained), MAX_DECLINE)


def _median_distance(values: Sequence[float]) -> float:
    """Between neighbours, so that a trend does not count as noise; a single value has no distance."""
    return statistics.median([abs(after - before) for before, after in pairwise(values)] or [0.0])
