"""The display: a live panel where it can be drawn, plain lines elsewhere, the same facts in both."""

import io
import math

import pytest
from rich.console import Console

from turnwise.runs import Column, LiveDisplay, PlainDisplay, make_display

METRICS = {
    "rollout/reward": 0.5,
    "rollout/success": 0.25,
    "policy/entropy": math.nan,
    "rollout/tokens_per_second": 12345.6,
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=40)


def live_console() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(display: LiveDisplay) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(display.render())
    return [line.rstrip() for line in written(console).splitlines()]


def test_plain_lines_hold_one_step_each_and_never_wrap():
    console, clock = plain_console(), Clock()
    with PlainDisplay(console, clock=clock) as display:
        display.stage("train", 10)
        clock.now += 30
        display.step(1, METRICS)
        clock.now += 50
        display.step(2, METRICS | {"policy/grad_norm": 2.0})
        display.note("evaluation: [exact match] 0.40")
    assert written(console).splitlines() == [
        "train: 10 steps",
        "train 1/10  reward 0.500  success 0.250  entropy –  tokens/s 12,346  4:30 left",
        "train 2/10  reward 0.500  success 0.250  entropy –  grad norm 2.000  tokens/s 12,346  5:20 left",
        "evaluation: [exact match] 0.40",
    ]


def test_time_left_of_a_resumed_stage_counts_the_steps_of_this_process():
    console, clock = plain_console(), Clock()
    display = PlainDisplay(console, clock=clock)
    display.stage("train", 1000)
    clock.now += 10
    display.step(501, {})
    clock.now += 10
    display.step(502, {})
    assert written(console).splitlines()[-1] == "train 502/1000  1:23:00 left"


def test_plain_progress_speaks_only_after_long_silence():
    console, clock = plain_console(), Clock()
    display = PlainDisplay(console, clock=clock)
    display.stage("train", 3)
    display.progress(1, 128, "rollout")
    clock.now += 31
    display.progress(37, 128, "rollout")
    display.progress(38, 128, "rollout")
    assert written(console).splitlines() == ["train: 3 steps", "train 0/3  rollout 37/128"]


def test_the_panel_shows_the_bar_the_latest_steps_and_the_curves():
    clock = Clock()
    with LiveDisplay(live_console(), clock=clock) as display:
        display.stage("train", 20)
        for step in range(1, 9):
            clock.now += 10
            display.step(step, {"rollout/reward": step / 10, "policy/entropy": 1.5})
        display.progress(37, 128, "rollout")
        lines = shown(display)
        assert lines[0].startswith("train ━")
        assert lines[0].endswith("8/20 1:20 elapsed 2:00 left rollout 37/128")
        assert [line.split() for line in lines[1:8]] == [
            ["step", "reward", "entropy"],
            *([str(step), f"{step / 10:.3f}", "1.500"] for step in range(3, 9)),
        ]
        assert lines[8:] == ["reward ▁▂▃▄▅▆▇█"]
        display.step(9, {"rollout/reward": 0.9})
        assert "rollout 37/128" not in shown(display)[0]


def test_a_finished_stage_leaves_one_line_and_notes_stay():
    console, clock = live_console(), Clock()
    with LiveDisplay(console, clock=clock) as display:
        display.stage("cold start", 2)
        clock.now += 42
        display.step(2, {"sft/loss": 0.125})
        display.stage("train", 5)
        display.note("an [odd] note")
        assert "0/5" in shown(display)[0]
        assert len(shown(display)) == 1
    assert "cold start: 2 steps in 0:42  loss 0.125" in written(console)
    assert "an [odd] note" in written(console)
    assert written(console).endswith("\x1b[?25h"), "the cursor is shown again"


def test_an_exception_restores_the_terminal():
    console = live_console()

    def train() -> None:
        with LiveDisplay(console) as display:
            display.stage("train", 5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert written(console).endswith("\x1b[?25h")


def test_a_display_is_chosen_by_what_the_console_can_do(monkeypatch: pytest.MonkeyPatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(make_display(Console(file=io.StringIO(), force_terminal=True)), LiveDisplay)
    assert isinstance(make_display(Console(file=io.StringIO())), PlainDisplay)
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(make_display(Console(file=io.StringIO(), force_terminal=True)), PlainDisplay)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(Console(file=io.StringIO(), force_terminal=True)), PlainDisplay)


def test_a_column_takes_the_first_name_that_a_step_reports():
    column = Column(title="grad norm", metrics=("policy/grad_norm", "sft/grad_norm"), format=".1f")
    assert column.show({"sft/grad_norm": 2.0}) == "2.0"
    assert column.show({"sft/grad_norm": 2.0, "policy/grad_norm": 3.0}) == "3.0"
    assert column.show({}) == "–"
