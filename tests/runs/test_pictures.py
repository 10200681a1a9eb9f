"""Pictures: sparklines and braille by hand, a PNG that is one, and a trajectory whose colours tell who spoke."""

import builtins
import logging
import math
from pathlib import Path

import pytest

from turnwise.runs import Series, colour_trajectory, draw_curve, sparkline, terminal_curve
from turnwise.types import StopReason, Task, Trajectory, Turn


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([0, 1, 2, 3], None, "▁▃▆█"),
        ([3, 0], None, "█▁"),
        ([5, 5, 5], None, "▄▄▄"),
        ([0, math.nan, 7], None, "▁ █"),
        ([math.nan], None, " "),
        ([], 8, ""),
        ([0, 0, 7, 7, 3, 4], 3, "▁█▅"),
        ([1, 2], 8, "▁█"),
    ],
)
def test_sparkline(values: list[float], width: int | None, expected: str):
    assert sparkline(values, width) == expected


def test_terminal_curve_draws_a_diagonal_dot_by_dot():
    # Two characters of one line: four columns of dots on four rows, from the lower left to the upper right.
    assert terminal_curve([0, 3], width=2, height=1) == "3.00 ┤⡠⠊"
    # Columns at 1, 2/3, 1/3 and 0 end on rows 0, 2, 5 and 7 of eight; each fills the rows after the one before it.
    assert terminal_curve([1, 0], width=2, height=2) == "1.00 ┤⠱⡀\n0.00 ┤⠀⢣"


def test_terminal_curve_of_little_or_nothing():
    assert terminal_curve([]) == ""
    assert terminal_curve([math.nan]) == ""
    assert terminal_curve([0.5], width=2, height=1) == "0.50 ┤⠤⠤"


def test_a_curve_becomes_a_png(tmp_path: Path):
    evaluations = Series(name="held out", x=[0, 5, 10], y=[0.3, math.nan, 0.9], marked=True)
    reward = Series(name="reward", x=[0, 10], y=[0.2, 0.8], band=([0.1, 0.7], [0.3, 0.9]))
    path = draw_curve(tmp_path / "curve.png", [evaluations, reward], title="Demo", y_label="exact match")
    assert path == tmp_path / "curve.png"
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(content[16:20], "big") == 1280
    bare = draw_curve(tmp_path / "bare.png", [], title="Demo")
    assert bare is not None
    assert bare.read_bytes() != content
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bare.png", "curve.png"]


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch, caplog):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with caplog.at_level(logging.WARNING):
        assert draw_curve(tmp_path / "curve.png", [], title="Demo") is None
    assert "pip install turnwise[plots]" in caplog.text
    assert not list(tmp_path.iterdir())


TEXT = {1: "<user>Who?\n<assistant>", 2: "search(Who)<end>", 3: "\n<tool>Ada\x1b[2J\n<assistant>", 4: "Ada<end>"}


def test_a_trajectory_shows_what_was_read_written_and_earned():
    turns = (
        Turn(context_ids=(1,), action_ids=(2,), logprobs=(0.0,), opens_row=True),
        Turn(context_ids=(3,), action_ids=(4,), logprobs=(0.0,), rewards={"em": 1.0, "format": -0.25}, opens_row=True),
    )
    trajectory = Trajectory(task=Task(id="a"), turns=turns, stop=StopReason.DONE, failure="late")
    text = colour_trajectory(trajectory, lambda ids: "".join(TEXT[i] for i in ids))
    styled = [(str(span.style), text.plain[span.start : span.end].strip()) for span in text.spans]
    assert styled == [
        ("dim", "<user>Who?\n<assistant>"),
        ("bold bright_green", "search(Who)<end>"),
        ("yellow", "← turn 1: no reward"),
        ("italic magenta", "⟲ the environment rewrote the conversation"),
        ("dim", "<tool>Ada·[2J\n<assistant>"),
        ("bold bright_green", "Ada<end>"),
        ("yellow", "← turn 2: em +1, format -0.25"),
        ("bold yellow", "ended: done, reward 0.75"),
        ("red", "(late)"),
    ]
