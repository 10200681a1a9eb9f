"""Peak, fall, alarm and lead of a run, and false alarms, by curves made by hand."""

import pytest

from benchmarks.games.curve import count_false_alarms, trace_curve, trailing_mean
from benchmarks.games.trap import false_alarm_table

QUIET = [0.0] * 20


def alarms(*steps, length=20):
    return [float(step in steps) for step in range(1, length + 1)]


def test_a_trailing_mean_begins_with_its_first_whole_window():
    assert trailing_mean([1, 2, 3, 4], window=3) == {3: 2.0, 4: 3.0}
    assert trailing_mean([1, 2], window=3) == {2: 1.5}, "a run shorter than the window has the mean of all"


def test_a_run_that_falls():
    """.6 for ten steps, then 0: the trailing mean is .48, .36, .24, ... at steps 11, 12, 13, ..."""
    curve = trace_curve([0.6] * 10 + [0.0] * 10, alarms(9, 10, 11))
    assert curve.peak == pytest.approx(0.6)
    assert curve.fallen_at == 13, ".24 is the first below .3"
    assert curve.trapped
    assert curve.final == 0.0
    assert curve.alarm_at == 9
    assert curve.lead == 4
    assert curve.warned


def test_an_alarm_at_the_very_step_of_the_fall_is_too_late():
    curve = trace_curve([0.6] * 10 + [0.0] * 10, alarms(13))
    assert (curve.lead, curve.warned) == (0, False)
    assert trace_curve([0.6] * 10 + [0.0] * 10, alarms(15)).lead == -2


def test_a_fall_without_an_alarm_has_no_lead():
    curve = trace_curve([0.6] * 10 + [0.0] * 10, QUIET)
    assert (curve.alarm_at, curve.lead, curve.warned) == (None, None, False)


def test_a_lucky_first_step_is_no_peak():
    curve = trace_curve([1.0] + [0.2] * 19, QUIET)
    assert curve.peak == pytest.approx(0.36)
    assert not curve.trapped


def test_a_run_that_falls_and_comes_back_is_not_trapped():
    back = trace_curve([0.6] * 5 + [0.0] * 5 + [0.5] * 10, alarms(8))
    assert not back.trapped
    assert back.fallen_at == 8, "(.6 + .6 + 0 + 0 + 0) / 5 = .24"
    assert back.final == pytest.approx(0.5)
    higher = trace_curve([0.6] * 5 + [0.0] * 5 + [0.9] * 10, alarms(8))
    assert higher.fallen_at is None, "half is lost of the peak, and the peak came last"
    assert higher.lead is None


def test_a_slow_start_is_no_fall():
    curve = trace_curve([0.0] * 10 + [0.8] * 10, QUIET)
    assert (curve.trapped, curve.fallen_at) == (False, None)


def test_just_half_of_the_peak_is_not_lost():
    curve = trace_curve([0.5] * 10 + [0.25] * 10, QUIET)
    assert (curve.trapped, curve.fallen_at) == (False, None)


def test_a_run_that_never_succeeds_has_nothing_to_lose():
    assert not trace_curve([0.0] * 20, QUIET).trapped


def test_false_alarms_are_counted_among_long_runs_that_did_not_end_trapped():
    def stretch(curve):
        return [value for value in curve for _ in range(3)]

    steady, fallen = [0.6] * 60, stretch([0.6] * 10 + [0.0] * 10)
    dipped = stretch([0.6] * 5 + [0.0] * 5 + [0.5] * 10)
    quiet = [0.0] * 60
    found = count_false_alarms(
        [
            trace_curve(steady, quiet),
            trace_curve(steady, alarms(7, 8, length=60)),
            trace_curve(dipped, alarms(19, length=60)),
            trace_curve(fallen, alarms(32, length=60)),
            trace_curve(fallen, quiet),
            trace_curve(steady[:49], quiet[:49]),
            trace_curve(steady[:49], alarms(40, length=49)),
            trace_curve(steady[:50], quiet[:50]),
        ]
    )
    assert (found.runs, found.healthy, found.alarmed) == (8, 4, 2), "neither the fallen nor those of 49 steps"
    assert found.steps == (49, 60)
    assert false_alarm_table({"rloo": found}).splitlines()[-1] == "| rloo | 8 | 49 to 60 | 4 | 2 |"
