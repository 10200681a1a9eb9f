"""The success curve of one training run: its peak, its fall, its first alarm, and which came first.

Invariant: all of it comes from two series, success and alarm, step by step from step 1. Success alone decides whether a
run counts as trapped.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harness.jobs import JobResult
from benchmarks.harness.training import read_column

WINDOW = 5
"""Steps in the trailing mean that defines a run's peak and fall."""
LAST = 10
"""Steps at the end whose mean is the run's final success."""
FALL = 0.5
"""A run has fallen below this share of its peak."""
LONG_ENOUGH = 50
"""A shorter run without an alarm proves nothing: the monitor needs steps to calibrate, and a fall takes steps too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run: `Curve(steps=120, final=.02, peak=.55, trapped=True, fallen_at=44, alarm_at=31)`."""

    steps: int
    final: float
    """Mean sampled success of the last steps."""
    peak: float
    """The highest trailing mean of sampled success."""
    trapped: bool
    """The run ended below half of its peak."""
    fallen_at: int | None
    """The first step after the peak at which half of it was lost; a run may have recovered since."""
    alarm_at: int | None
    """The step of the first alarm."""

    @property
    def lead(self) -> int | None:
        """Steps from the alarm to the fall: above zero when the alarm came first; None when either is missing."""
        return None if self.fallen_at is None or self.alarm_at is None else self.fallen_at - self.alarm_at

    @property
    def warned(self) -> bool:
        """The alarm came before the fall."""
        return self.lead is not None and self.lead > 0


def trace_curve(success: Sequence[float], alarms: Sequence[float]) -> Curve:
    """From a run's sampled success, and 1 at steps with an alarm."""
    trailing = trailing_mean(success)
    peak = max(trailing.values())
    summit = max(step for step, mean in trailing.items() if mean == peak)
    return Curve(
        steps=len(success),
        final=statistics.fmean(success[-LAST:]),
        peak=peak,
        trapped=trailing[len(success)] < FALL * peak,
        fallen_at=_first(step for step, mean in trailing.items() if step > summit and mean < FALL * peak),
        alarm_at=_first(step for step, alarm in enumerate(alarms, 1) if alarm > 0),
    )


def read_curve(run: JobResult) -> Curve:
    """The curve of a training job."""
    return trace_curve(read_column(run, "train", "rollout/success"), read_column(run, "train", "stability/alarm"))


def trailing_mean(values: Sequence[float], window: int = WINDOW) -> dict[int, float]:
    """By step, the mean of its value and of those before it, `window` in all: `{5: .52, 6: .5, ...}`.

    Steps with fewer before them have none, so that no lucky first step is taken for a peak; a run that is shorter than
    the window has one mean, that of all.
    """
    window = min(window, len(values))
    return {step: statistics.fmean(values[step - window : step]) for step in range(window, len(values) + 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarms:
    """Alarms in healthy runs: `FalseAlarms(runs=25, steps=(60, 100), healthy=24, alarmed=0)`."""

    runs: int
    steps: tuple[int, int]
    """Of the shortest run and of the longest."""
    healthy: int
    """Runs that were long enough and did not end trapped; one that fell and recovered counts."""
    alarmed: int
    """Healthy runs with an alarm."""


def count_false_alarms(curves: Sequence[Curve]) -> FalseAlarms:
    """How often the monitor raised a false alarm."""
    healthy = [curve for curve in curves if not curve.trapped and curve.steps >= LONG_ENOUGH]
    alarmed = sum(curve.alarm_at is not None for curve in healthy)
    lengths = [curve.steps for curve in curves]
    return FalseAlarms(runs=len(curves), steps=(min(lengths), max(lengths)), healthy=len(healthy), alarmed=alarmed)


def _first(steps: Iterable[int]) -> int | None:
    return next(iter(steps), None)
