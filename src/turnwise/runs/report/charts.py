"""The report's charts as inline SVG: no library, no script; sharp at any size, light or dark.

Invariant: a value that is not finite leaves a gap, and every word is escaped. Colours are the page's, by class.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from markupsafe import Markup

from turnwise.runs.picture import Series

_RIGHT, _TOP, _BOTTOM = 12, 12, 26
_BESIDE = 6
"""Between a number and its grid line."""
_SMALL = 500
"""Width up to which a chart counts as small."""
_MOST_POINTS = 400
"""Longer lines are averaged into this many points, to keep the page small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One part of a bar: `Slice(name="decode", value=41.2, note="41.2 s, 63%")`."""

    name: str
    value: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """From values to pixels."""

    width: int
    height: int
    x: tuple[float, float]
    y: tuple[float, float]

    @property
    def type_size(self) -> int:
        """Font size of the axis numbers; small charts are scaled down, so theirs is larger."""
        return 11 if self.width > _SMALL else 16

    @property
    def left(self) -> float:
        """Left edge of the lines: after the longest axis number, whose digits are some six tenths as wide as high."""
        longest = max((len(_number(y)) for y in self.rounds()), default=0)
        return max(46.0, 0.62 * self.type_size * longest + _BESIDE)

    def rounds(self) -> list[float]:
        """Round numbers for the vertical axis."""
        return _ticks(*self.y, 4)

    def across(self, x: float) -> float:
        low, high = self.x
        return self.left + (x - low) / (high - low) * (self.width - self.left - _RIGHT)

    def down(self, y: float) -> float:
        low, high = self.y
        return self.height - _BOTTOM - (y - low) / (high - low) * (self.height - _TOP - _BOTTOM)


def draw_lines(
    series: Sequence[Series],
    *,
    label: str,
    width: int = 860,
    height: int = 280,
    between: tuple[float, float] | None = None,
    events: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Lines over training steps, `between` two values or scaled to fit; `events` are marked at their steps."""
    lines = [_thin(line) for line in series]
    xs = [x for line in lines for x in line.x if math.isfinite(x)] + [x for x, _ in events]
    frame = _Frame(width=width, height=height, x=_span(xs, room=0.0), y=between or _span(_heights(lines)))
    parts = [*_grid(frame)]
    parts += [_event(frame, x, words) for x, words in events]
    for number, line in enumerate(lines):
        parts += _line(frame, line, number)
    return _svg("chart", label, width, height, parts)


def draw_bar(slices: Sequence[Slice], *, label: str, width: int = 860, height: int = 26) -> Markup:
    """One bar divided into slices, each with a tooltip."""
    whole = math.fsum(part.value for part in slices)
    parts: list[str] = []
    start = 0.0
    for part in slices:
        size = part.value / whole * width if whole else 0.0
        parts.append(
            f'<rect class="a-{escape(part.name)}" x="{start:.2f}" y="0" width="{size:.2f}" height="{height}">'
            f"<title>{escape(part.name.replace('_', ' '))}: {escape(part.note)}</title></rect>"
        )
        start += size
    return _svg("bar", label, width, height, parts)


def _svg(kind: str, label: str, width: int, height: int, parts: Sequence[str]) -> Markup:
    stretch = ' preserveAspectRatio="none"' if kind == "bar" else ""
    opening = f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}"{stretch}>'
    return Markup("\n".join([opening, *parts, "</svg>"]))  # every word in the parts is escaped


def _grid(frame: _Frame) -> Iterator[str]:
    left, size = frame.left, f'font-size="{frame.type_size}"'
    for y in frame.rounds():
        height = frame.down(y)
        yield f'<line class="grid" x1="{left:.1f}" x2="{frame.width - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
        place = f'x="{left - _BESIDE:.1f}" y="{height + 3.5:.1f}"'
        yield f'<text class="tick" {place} {size} text-anchor="end">{_number(y)}</text>'
    for x in _ticks(*frame.x, 8 if frame.width > _SMALL else 4, least=1.0):
        place = f'x="{frame.across(x):.1f}" y="{frame.height - 8}"'
        yield f'<text class="tick" {place} {size} text-anchor="middle">{_number(x)}</text>'


def _event(frame: _Frame, x: float, words: str) -> str:
    place = f"{frame.across(x):.1f}"
    line = f'<line class="event" x1="{place}" x2="{place}" y1="{_TOP}" y2="{frame.height - _BOTTOM}">'
    return f"{line}<title>{escape(words)}</title></line>"


def _line(frame: _Frame, line: Series, number: int) -> Iterator[str]:
    if line.band is not None:
        for x, low, high in zip(line.x, *line.band, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                ends = f'y1="{frame.down(low):.1f}" y2="{frame.down(high):.1f}"'
                yield f'<line class="whisker s{number}" x1="{frame.across(x):.1f}" x2="{frame.across(x):.1f}" {ends}/>'
    for run in _runs(line):
        points = " ".join(f"{frame.across(x):.1f},{frame.down(y):.1f}" for x, y in run)
        yield f'<polyline class="line s{number}" points="{points}"/>'
        for x, y in run if line.marked or len(run) == 1 else ():
            note = f"{line.name}, step {_number(x)}: {y:.4g}"
            place = f'cx="{frame.across(x):.1f}" cy="{frame.down(y):.1f}"'
            yield f'<circle class="dot s{number}" {place} r="3.5"><title>{escape(note)}</title></circle>'


def _runs(line: Series) -> Iterator[list[tuple[float, float]]]:
    """The stretches of a line that have no gap."""
    run: list[tuple[float, float]] = []
    for x, y in zip(line.x, line.y, strict=True):
        if math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _thin(line: Series) -> Series:
    if len(line.x) <= _MOST_POINTS or line.marked:
        return line
    edges = [round(place * len(line.x) / _MOST_POINTS) for place in range(_MOST_POINTS + 1)]
    parts = list(pairwise(edges))
    return Series(name=line.name, x=[_mean(line.x[a:b]) for a, b in parts], y=[_mean(line.y[a:b]) for a, b in parts])


def _heights(lines: Sequence[Series]) -> list[float]:
    edges = [y for line in lines if line.band for side in line.band for y in side]
    return [y for y in [*edges, *(y for line in lines for y in line.y)] if math.isfinite(y)]


def _span(values: Sequence[float], room: float = 0.06) -> tuple[float, float]:
    """From the least to the greatest with some room beyond both, and never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    margin = room * (high - low)
    return low - margin, high + margin


def _ticks(low: float, high: float, count: int, least: float = 0.0) -> list[float]:
    """Round numbers within, about `count` of them and `least` apart: `_ticks(0, 1, 4)` is 0, .2, .4, .6, .8, 1."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.75))
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    """`0.25`, `1,500`, `20k`, `3M`: short enough for the margin."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{round(value, 10):,.10g}"


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
