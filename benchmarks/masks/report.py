"""The report of `turnwise bench masks`: success by row, differences to both masks, curves, and the reach of credit.

Invariant: every number is a mean over seeds; differences are taken within a seed before their mean is.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from benchmarks.harness.jobs import JobResult
from benchmarks.harness.report import Picture, Report
from benchmarks.harness.results import Estimate, estimate_mean, markdown_table
from benchmarks.masks.reach import LENGTHS, measure_reach
from turnwise.runs import Panel, Series

Runs: TypeAlias = Sequence[JobResult]
"""The training jobs of one row, seed by seed."""

WHOLE = "both"
"""The row that the others are ablations of."""
LABELS = {
    "both": "both masks",
    "no-advantage-mask": "no advantage mask",
    "neither": "neither mask",
}


def report(runs: Mapping[str, Runs], *, lam: float) -> Report:
    """From the jobs' results to what is published."""
    found = {row: summarise(runs[row], runs[WHOLE]) for row in runs}
    reach = {
        (length, mask): measure_reach(lam, length, advantage_mask=mask) for length in LENGTHS for mask in (True, False)
    }
    published: dict[str, float] = {}
    for row, estimates in found.items():
        for name, estimate in estimates.items():
            published |= estimate.flat(f"{row}/{name}")
    for (length, mask), share in reach.items():
        published[f"reach/{length}/{'mask' if mask else 'no-mask'}"] = share
    return Report(
        results=published,
        parts={"table": _table(found), "reach": _reach_table(reach)},
        pictures=[_draw(runs)],
    )


def summarise(runs: Runs, whole: Runs) -> dict[str, Estimate]:
    """Success before and after training and over all of it, and the last two less those of the whole row."""
    after, over = _after(runs), _over_training(runs)
    return {
        "before": estimate_mean([_success(run)[0] for run in runs]),
        "success": estimate_mean(after),
        "success_less_both": _difference(after, _after(whole)),
        "over_training": estimate_mean(over),
        "over_training_less_both": _difference(over, _over_training(whole)),
    }


def _after(runs: Runs) -> list[float]:
    return [_success(run)[-1] for run in runs]


def _over_training(runs: Runs) -> list[float]:
    return [statistics.fmean(_success(run)[1:]) for run in runs]


def _success(run: JobResult) -> list[float]:
    """Before training and after every update."""
    column = run["success"]
    assert isinstance(column, list)
    return [float(value) for value in column if isinstance(value, int | float)]


def _difference(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    return estimate_mean([one - other for one, other in zip(ours, others, strict=True)])


def _table(found: Mapping[str, Mapping[str, Estimate]]) -> str:
    rows = []
    for row, estimates in found.items():
        less = ["" if row == WHOLE else estimates[f"{name}_less_both"].show(signed=True) for name in _SHOWN]
        cells = [cell for name, other in zip(_SHOWN, less, strict=True) for cell in (estimates[name].show(), other)]
        rows.append([LABELS[row], estimates["before"].show(), *cells])
    return markdown_table(["", "before", "after", "Δ", "over training", "Δ"], rows)


_SHOWN = ("success", "over_training")


def _reach_table(reach: Mapping[tuple[int, bool], float]) -> str:
    rows = [
        [label, *(f"{reach[length, mask]:.2g}" for length in LENGTHS)]
        for label, mask in (("advantage mask", True), ("no advantage mask", False))
    ]
    return markdown_table(["tokens of the observation", *map(str, LENGTHS)], rows)


def _draw(runs: Mapping[str, Runs]) -> Picture:
    return Picture(
        name="learning",
        title="Success over training",
        panels=[Panel(title="by mask", series=[_line(row, runs[row]) for row in runs])],
        x_label="update",
        y_label="success",
    )


def _line(row: str, runs: Runs) -> Series:
    points = [estimate_mean(at) for at in zip(*map(_success, runs), strict=True)]
    return Series(
        name=LABELS[row],
        x=[float(update) for update in range(len(points))],
        y=[point.mean for point in points],
        band=([point.low for point in points], [point.high for point in points]),
    )
