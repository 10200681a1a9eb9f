"""Means over seeds with their confidence intervals, and tables of them.

Invariant: an interval is Student's t over the seeds, each of which counts once; with one seed there is none.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.evaluation.intervals import student_t
from turnwise.runs import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95% interval: `Estimate(mean=.52, low=.44, high=.60, seeds=5)`."""

    mean: float
    low: float
    high: float
    """Both edges are NaN when there is one seed alone."""
    seeds: int

    def show(self, digits: int = 3, *, signed: bool = False) -> str:
        """`0.520 [0.440, 0.600]`, or the mean alone."""
        sign = "+" if signed else ""
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in (self.mean, self.low, self.high))
        return mean if math.isnan(self.low) else f"{mean} [{low}, {high}]"

    def flat(self, name: str) -> dict[str, float]:
        """`{name: .52, name/low: .44, name/high: .60}`: what a results file holds."""
        edges = {} if math.isnan(self.low) else {f"{name}/low": self.low, f"{name}/high": self.high}
        return {name: self.mean} | edges


def estimate_mean(values: Sequence[float]) -> Estimate:
    """The mean of independent values, 95% of such intervals holding the true one: mean ± t·s/√n.

    `estimate_mean([1, 2, 3])` is 2 ± 4.303 · 1/√3, that is [−.484, 4.484].
    """
    count, mean = len(values), statistics.fmean(values)
    if count < 2:
        return Estimate(mean=mean, low=math.nan, high=math.nan, seeds=count)
    half = student_t(count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean=mean, low=mean - half, high=mean + half, seeds=count)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first `left` columns are words and the others numbers, aligned to the right."""
    lines: list[Sequence[str]] = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    assert all(len(line) == len(header) for line in lines), "every row has a cell for every column"
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show_number(value: float, digits: int = 3) -> str:
    """A number for a table; a dash where it is not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def draw_line(name: str, curve: Mapping[int, Estimate] | Mapping[str, Estimate]) -> Series:
    """A curve of estimates by step, with their intervals as its band."""
    points = list(curve.values())
    return Series(
        name=name,
        x=[float(step) for step in curve],
        y=[point.mean for point in points],
        band=([point.low for point in points], [point.high for point in points]),
    )
