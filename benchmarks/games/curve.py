"""The course of one training run, as far as a trap is concerned: its peak, its fall, its alarm, and which came first.

Invariant: all of it is read off two curves, success and alarm, step by step from step 1; nothing else decides whether a
run is said to be trapped, and alarms have no part in that.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harness.jobs import Figures
from benchmarks.harness.training import read_column

WINDOW = 5
"""Steps in the trailing mean, by which a run's peak and its fall are told."""
LAST = 10
"""Steps at the end whose mean is the run's final success."""
FALL = 0.5
"""The share of its peak that a run must keep not to have fallen."""
LONG_ENOUGH = 50
"""Steps without which a run's silence says nothing: the monitor needs some to know it, and a fall takes some to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How one run went: `Course(steps=120, final=.02, peak=.55, trapped=True, fallen_at=44, alarm_at=31)`."""

    steps: int
    final: float
    """Mean sampled success of the last steps."""
    peak: float
    """The highest trailing mean of sampled success."""
    trapped: bool
    """The run ended below half of its peak."""
    fallen_at: int | None
    """The first step after the peak at which half of it was lost; a run may have come back since."""
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


def trace_course(success: Sequence[float], alarms: Sequence[float]) -> Course:
    """From the curves of a run: the success it sampled, and 1 where an alarm was standing."""
    trailing = trailing_mean(success)
    peak = max(trailing.values())
    summit = max(step for step, mean in trailing.items() if mean == peak)
    return Course(
        steps=len(success),
        final=statistics.fmean(success[-LAST:]),
        peak=peak,
        trapped=trailing[len(success)] < FALL * peak,
        fallen_at=_first(step for step, mean in trailing.items() if step > summit and mean < FALL * peak),
        alarm_at=_first(step for step, alarm in enumerate(alarms, 1) if alarm > 0),
    )


def read_course(run: Figures) -> Course:
    """The course of a training job."""
    return trace_course(read_column(run, "train", "rollout/success"), read_column(run, "train", "stability/alarm"))


def trailing_mean(values: Sequence[float], window: int = WINDOW) -> dict[int, float]:
    """By step, the mean of its value and of those before it, `window` in all: `{5: .52, 6: .5, ...}`.

    Steps with fewer before them have none, so that no lucky first step is taken for a peak; a run that is shorter than
    the window has one mean, that of all.
    """
    window = min(window, len(values))
    return {step: statistics.fmean(values[step - window : step]) for step in range(window, len(values) + 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarms:
    """Alarms in runs that were well: `FalseAlarms(runs=25, steps=(60, 100), healthy=24, alarmed=0)`."""

    runs: int
    steps: tuple[int, int]
    """Those of the shortest run and of the longest: the more there are, the more a silence says."""
    healthy: int
    """Those that went on for long enough and did not end trapped; one that fell and came back is among them."""
    alarmed: int
    """The healthy ones in which an alarm was raised all the same."""


def count_false_alarms(courses: Sequence[Course]) -> FalseAlarms:
    """How often the monitor cried wolf."""
    healthy = [course for course in courses if not course.trapped and course.steps >= LONG_ENOUGH]
    alarmed = sum(course.alarm_at is not None for course in healthy)
    lengths = [course.steps for course in courses]
    return FalseAlarms(runs=len(courses), steps=(min(lengths), max(lengths)), healthy=len(healthy), alarmed=alarmed)


def _first(steps: Iterable[int]) -> int | None:
    return next(iter(steps), None)
