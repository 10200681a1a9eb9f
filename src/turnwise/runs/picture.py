"""Pictures of a run: a learning curve as PNG or in the terminal, and one trajectory in colour.

Invariant: drawing never fails a run: without matplotlib there is no picture, and a value that is not finite is a gap.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from turnwise.runs.files import replaced
from turnwise.types import Trajectory, Turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character (U+2800 onwards): two columns of four dots, from the top."""
_COLOURS = ("#2a6fdb", "#e4572e", "#17a398", "#8e5bd0", "#e0a526", "#6b7280")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a curve: `Series(name="exact match", x=(0, 10), y=(0.3, 0.9), marked=True)`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    marked: bool = False
    """Mark every point with a dot and its value: for evaluations, which are few."""
    band: tuple[Sequence[float], Sequence[float]] | None = None
    """The lower and the upper edge of a shaded band, such as a confidence interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One of several curves drawn side by side on equal axes."""

    title: str
    series: Sequence[Series]
    behind: Sequence[Series] = ()
    """Drawn thin and grey for comparison, such as the other panels' series."""


def draw_curve(
    path: Path, series: Sequence[Series], *, title: str, x_label: str = "step", y_label: str = ""
) -> Path | None:
    """Draws a learning curve as PNG; None, with a warning, if matplotlib is not installed."""
    figure = _new_figure(8, 4.5)
    if figure is None:
        return None
    axes = figure.add_subplot()
    _plot(axes, series, x_label=x_label, y_label=y_label)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold")
    axes.margins(x=0.03, y=0.12)
    if series:
        axes.legend(frameon=False, loc="best")
    return _save(figure, path)


def draw_panels(
    path: Path, panels: Sequence[Panel], *, title: str, x_label: str = "step", y_label: str = "", columns: int = 5
) -> Path | None:
    """Draws several curves side by side as PNG, on equal axes; None when matplotlib is not installed."""
    across = min(columns, max(len(panels), 1))
    down = -(-len(panels) // across)
    figure = _new_figure(2.4 * across + 0.6, 2.2 * max(down, 1) + 0.6)
    if figure is None:
        return None
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    first = None
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(down, across, place + 1, sharex=first, sharey=first)
        first = first or axes
        for line in panel.behind:
            axes.plot(line.x, line.y, color="#d1d5db", linewidth=1)
        lowest, leftmost = place + across >= len(panels), place % across == 0
        _plot(axes, panel.series, x_label=x_label if lowest else "", y_label=y_label if leftmost else "")
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.tick_params(labelsize=8, labelbottom=lowest, labelleft=leftmost)
        if len(panel.series) > 1:
            axes.legend(frameon=False, loc="best", fontsize=8)
    return _save(figure, path)


def _new_figure(width: float, height: float) -> "Figure | None":
    try:
        # Not pyplot, which has global state and may open a display.
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("no learning curve drawn: matplotlib is not installed; pip install turnwise[plots]")
        return None
    return Figure(figsize=(width, height), dpi=160, layout="constrained", facecolor="white")


def _plot(axes: "Axes", series: Sequence[Series], *, x_label: str, y_label: str) -> None:
    for index, line in enumerate(series):
        colour = _COLOURS[index % len(_COLOURS)]
        if line.band:
            axes.fill_between(line.x, *line.band, color=colour, alpha=0.15, linewidth=0)
        style = {"marker": "o", "markersize": 6, "markeredgecolor": "white"} if line.marked else {"alpha": 0.85}
        axes.plot(line.x, line.y, color=colour, linewidth=2, label=line.name, **style)
        for x, y in zip(line.x, line.y, strict=True):
            if line.marked and math.isfinite(y):
                axes.annotate(
                    f"{y:.2f}", (x, y), (0, 8), textcoords="offset points", ha="center", color=colour, fontsize=8
                )
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y", color="#e5e7eb")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: "Figure", path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with replaced(path) as temporary:
        FigureCanvasAgg(figure).print_figure(temporary, format="png")
    return path


def sparkline(values: Sequence[float], width: int | None = None) -> str:
    """`sparkline([0, 1, 2, 3])` is `▁▃▆█`; a longer series is averaged into `width` characters."""
    if width is not None and len(values) > width:
        edges = [round(index * len(values) / width) for index in range(width + 1)]
        values = [_mean(values[start:end]) for start, end in pairwise(edges)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return " " * len(values)
    low, span = min(finite), max(finite) - min(finite)
    return "".join(
        _BARS[round((value - low) / span * 7) if span else 3] if math.isfinite(value) else " " for value in values
    )


def terminal_curve(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """A curve in braille dots, `height` lines of `width` characters, the highest and lowest value at its left."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    rows = 4 * height
    cells = [[0] * width for _ in range(height)]
    before: int | None = None
    for column, value in enumerate(_stretch(finite, 2 * width)):
        row = round((high - value) / (high - low) * (rows - 1)) if high > low else rows // 2
        # A steep stretch fills the rows it passes, so that the line has no holes.
        start = row if before is None or before == row else before + (1 if row > before else -1)
        for dot in range(min(start, row), max(start, row) + 1):
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
        before = row
    labels = [f"{high:.2f}", *[""] * (height - 2), f"{low:.2f}"] if height > 1 else [f"{high:.2f}"]
    margin = max(map(len, labels))
    lines = ("".join(chr(0x2800 + cell) for cell in line) for line in cells)
    return "\n".join(f"{label:>{margin}} ┤{line}" for label, line in zip(labels, lines, strict=True))


def colour_trajectory(trajectory: Trajectory, decode: Callable[[Sequence[int]], str]) -> Text:
    """An episode as the model saw it: context is dim, actions are bright, rewards are noted."""
    text = Text()
    for number, turn in enumerate(trajectory.turns, 1):
        if number > 1 and turn.opens_row:
            text.append("\n\n⟲ the environment rewrote the conversation\n", style="italic magenta")
        text.append(visible(decode(turn.context_ids)), style="dim")
        text.append(visible(decode(turn.action_ids)), style="bold bright_green")
        text.append(f"  ← turn {number}: {_note(turn)}", style="yellow")
    text.append(f"\nended: {trajectory.stop.value}, reward {trajectory.reward:g}", style="bold yellow")
    return text.append(f" ({visible(trajectory.failure)})" if trajectory.failure else "", style="red")


def _note(turn: Turn) -> str:
    return ", ".join(f"{name} {value:+g}" for name, value in turn.rewards.items()) or "no reward"


def visible(text: str) -> str:
    """The text with control characters as dots: a model may have written anything."""
    return "".join(char if char.isprintable() or char in "\n\t" else "·" for char in text)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def _stretch(values: Sequence[float], count: int) -> list[float]:
    """The series at `count` evenly spaced points, straight lines between its values."""
    points: list[float] = []
    for index in range(count):
        place = index * (len(values) - 1) / max(count - 1, 1)
        left = min(int(place), len(values) - 1)
        right = min(left + 1, len(values) - 1)
        points.append(values[left] + (values[right] - values[left]) * (place - left))
    return points
