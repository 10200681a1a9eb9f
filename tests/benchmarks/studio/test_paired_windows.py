"""A cost of 1 % is told from none in a run that drifts, by pairs of windows."""

import json

import numpy as np
import pytest

from benchmarks.studio.windows import Step, Stopwatch, Window, compare, mean_in, read_steps

WINDOW, PAIRS = 10.0, 30


def windows_of(pairs: int) -> list[tuple[Window, Window]]:
    found = []
    for number in range(pairs):
        order = (False, True) if number % 2 else (True, False)
        starts = (2 * number * WINDOW, (2 * number + 1) * WINDOW)
        first, second = (
            Window(is_open=is_open, began=began, ended=began + WINDOW)
            for is_open, began in zip(order, starts, strict=True)
        )
        found.append((first, second))
    return found


def made_steps(pairs: list[tuple[Window, Window]], cost: float, noise: float = 0.02) -> list[Step]:
    """Steps of .2 s that grow slower by half over the run, and by `cost` where the page is open."""
    rng = np.random.default_rng(0)
    is_open = {int(window.began // WINDOW): window.is_open for pair in pairs for window in pair}
    steps, clock, end = [], 0.0, 2 * len(pairs) * WINDOW
    while clock < end:
        open_now = is_open[int(clock // WINDOW)]
        seconds = 0.2 * (1 + 0.5 * clock / end) * (1 + cost * open_now) * (1 + noise * rng.standard_normal())
        steps.append(Step(began=clock, ended=clock + seconds, cpu=seconds))
        clock += seconds
    return steps


@pytest.mark.parametrize("cost", [0.0, 0.01, 0.05])
def test_a_cost_is_found_within_its_interval_though_the_run_drifts(cost):
    pairs = windows_of(PAIRS)
    change = compare(pairs, made_steps(pairs, cost), lambda step: step.cpu)
    assert change.low < cost < change.high
    assert change.high - change.low < 0.01
    assert (change.low > 0) is (cost > 0)


def test_a_noisier_run_has_a_wider_interval():
    pairs = windows_of(PAIRS)
    quiet, busy = (compare(pairs, made_steps(pairs, 0.0, noise), lambda step: step.seconds) for noise in (0.02, 0.3))
    assert busy.high - busy.low > 3 * (quiet.high - quiet.low)


def test_a_step_that_crosses_a_border_counts_for_no_window():
    steps = [Step(began=began, ended=began + 1, cpu=cpu) for began, cpu in ((0, 1.0), (1, 3.0), (1.5, 99.0))]
    window = Window(is_open=True, began=0, ended=2)
    assert mean_in(window, steps, lambda step: step.cpu) == 2.0
    with pytest.raises(SystemExit, match="ask for longer windows"):
        mean_in(Window(is_open=True, began=5, ended=6), steps, lambda step: step.cpu)


def test_steps_are_what_lies_between_two_lines_of_the_stopwatch(tmp_path):
    file = tmp_path / "steps.jsonl"
    stopwatch = Stopwatch(file=str(file))
    for step in range(3):
        stopwatch.on_step_end(step, {})
    assert len(read_steps(file)) == 2
    file.write_text("".join(f"{json.dumps(line)}\n" for line in ([1.0, 0.5], [3.0, 1.5])) + "[4.0, 1")
    assert read_steps(file) == [Step(began=1.0, ended=3.0, cpu=1.0)]
