"""A cost of 1 % is told from none in a run that drifts and has hiccups, by blocks of windows."""

import json

import numpy as np
import pytest

from benchmarks.studio import beside_training
from benchmarks.studio.windows import (
    ORDER,
    Change,
    Step,
    Stopwatch,
    Window,
    cost,
    cpu_change,
    estimate,
    make_window,
    read_blocks,
    read_steps,
    report,
    save_blocks,
    server_share,
    time_change,
)

WINDOW, BLOCKS = 5.0, 40


def made_steps(change, noise=0.02, hiccups=0.0):
    """Steps of .2 s that grow slower by half over the run, and by `change` where the page is open.

    A hiccup makes the steps of a window slower by half.
    """
    rng = np.random.default_rng(0)
    windows = len(ORDER) * BLOCKS
    slow = 1 + 0.5 * (rng.random(windows + 1) < hiccups)
    steps, clock, end = [], 0.0, windows * WINDOW
    while clock < end:
        place = int(clock // WINDOW)
        share = (1 + 0.5 * clock / end) * (1 + change * ORDER[place % len(ORDER)]) * slow[place]
        seconds = 0.2 * share * (1 + noise * rng.standard_normal())
        steps.append(Step(began=clock, ended=clock + seconds, cpu=seconds))
        clock += seconds
    return steps


def blocks_of(steps, server=0.0):
    def window(place):
        is_open, began = ORDER[place % len(ORDER)], place * WINDOW
        return make_window(steps, began, began + WINDOW, is_open=is_open, server=server * is_open * WINDOW)

    return [tuple(window(len(ORDER) * block + place) for place in range(len(ORDER))) for block in range(BLOCKS)]


@pytest.mark.parametrize("change", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("hiccups", [0.0, 0.05])
def test_a_cost_is_found_within_its_interval_though_the_run_drifts(change, hiccups):
    found = estimate(blocks_of(made_steps(change, hiccups=hiccups)), cpu_change)
    assert found.low < change < found.high
    assert found.high - found.low < 0.01
    assert (found.low > 0) is (change > 0)


def test_a_noisier_run_has_a_wider_interval():
    quiet, busy = (estimate(blocks_of(made_steps(0.0, noise)), time_change) for noise in (0.02, 0.3))
    assert busy.high - busy.low > 3 * (quiet.high - quiet.low)


@pytest.mark.parametrize(
    ("change", "server", "verdict"),
    [(0.0, 0.002, "below 1%"), (0.0, 0.03, "not below 1%"), (0.03, 0.0, "not below 1%")],
)
def test_the_cost_is_that_of_training_and_of_the_server_together(change, server, verdict):
    found = estimate(blocks_of(made_steps(change), server), cost)
    assert found.low < change + server < found.high
    assert found.verdict == verdict


def test_an_interval_that_holds_the_bar_decides_nothing():
    assert Change(mean=0.005, low=-0.01, high=0.011, blocks=99).verdict.startswith("undecided")


def test_a_few_blocks_decide_nothing():
    blocks = blocks_of(made_steps(0.0))
    assert estimate(blocks[:12], cost).verdict == "below 1%"
    assert estimate(blocks[:11], cost).verdict.startswith("undecided: 11 blocks are too few")


def test_the_servers_share_is_of_what_training_computes():
    """4 ms of the server in a second, beside steps of .5 s that compute for .4 s: 2 ms of 400."""
    windows = [
        Window(is_open=is_open, steps=10, cpu=0.4, seconds=0.5, server=0.004 if is_open else 0.9, page=0.0)
        for is_open in ORDER
    ]
    assert server_share(tuple(windows)) == pytest.approx(0.005)


def test_a_step_that_crosses_a_border_counts_for_no_window():
    steps = [Step(began=began, ended=began + 1, cpu=cpu) for began, cpu in ((0, 1.0), (1, 3.0), (1.5, 99.0))]
    window = make_window(steps, 0, 2, is_open=True, server=0.5)
    assert (window.cpu, window.steps, window.server) == (2.0, 2, 0.25)
    with pytest.raises(SystemExit, match="ask for longer windows"):
        make_window(steps, 5, 6, is_open=True)


def test_runs_are_joined(tmp_path, monkeypatch, capsys):
    blocks = blocks_of(made_steps(0.05))
    files = [tmp_path / "0.json", tmp_path / "1.json"]
    save_blocks(files[0], blocks[:15])
    save_blocks(files[1], blocks[15:])
    assert [block for file in files for block in read_blocks(file)] == blocks
    said = []
    report(blocks, said.append)
    monkeypatch.setattr("sys.argv", ["beside_training", "--join", *map(str, files)])
    beside_training.main()
    assert capsys.readouterr().out.splitlines() == said
    assert said[-1].startswith("cost, by an open page: +")
    assert said[-1].endswith(": not below 1%")


def test_one_of_ten_pages_costs_a_tenth():
    said = []
    blocks = blocks_of(made_steps(0.05), server=0.004)
    report(blocks, said.append, pages=10)
    whole, found = estimate(blocks, cost), estimate(blocks, cost).divide(10)
    assert (found.mean, found.low, found.high) == pytest.approx((whole.mean / 10, whole.low / 10, whole.high / 10))
    assert found.low < 0.0054 < found.high
    assert said[-1] == f"cost, by an open page, of 10: {found}: below 1%"


def test_steps_are_what_lies_between_two_lines_of_the_stopwatch(tmp_path):
    file = tmp_path / "steps.jsonl"
    stopwatch = Stopwatch(file=str(file))
    for step in range(3):
        stopwatch.on_step_end(step, {})
    assert len(read_steps(file)) == 2
    file.write_text("".join(f"{json.dumps(line)}\n" for line in ([1.0, 0.5], [3.0, 1.5])) + "[4.0, 1")
    assert read_steps(file) == [Step(began=1.0, ended=3.0, cpu=1.0)]
