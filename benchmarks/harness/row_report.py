"""How the report of a table in pieces shows its rows: what is missing, what training took, windows of its steps.

Invariant: a row is shown whatever there is of it, and a figure that nothing was measured for is an empty cell.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.harness.report import Picture
from benchmarks.harness.results import Estimate, draw_line, markdown_table
from benchmarks.harness.rows import RowResults, average_steps, count_steps, sum_effort
from turnwise.runs import Panel

WINDOWS = 8
"""Into how many parts the steps of training are divided where a table shows them."""
_TITLE = 28
"""Characters that the width of a panel holds."""


def describe_state(row: RowResults, planned: int | None) -> str:
    """What stands in place of a result, such as `12 of 40 steps`; empty for a row that has one."""
    if row.evaluated:
        return ""
    if trained := count_steps(row, "train"):
        return f"{trained} of {planned} steps"
    demonstrated = count_steps(row, "sft")
    return f"not run, but {demonstrated} steps of SFT" if demonstrated else "not run"


def count_seeds(row: RowResults, seeds: int) -> str:
    """`2`, or `1 of 2` where one is missing."""
    return f"{len(row.evaluated)}" if len(row.evaluated) == seeds else f"{len(row.evaluated)} of {seeds}"


def effort_table(rows: Sequence[tuple[str, RowResults, int | None]]) -> str:
    """What each run took on average, from the rows' labels, results and planned steps of training, if any."""
    header = ["", "steps", "episodes", "updates", "sampled tokens", "trained tokens", "seconds"]
    lines = []
    for label, row, planned in rows:
        if effort := sum_effort(row):
            trained = count_steps(row, "train")
            shown = f"{count_steps(row, 'sft')} (SFT)" if planned is None else f"{trained} of {planned}"
            lines.append([label, shown, *(f"{total:,.0f}" if total else "" for total in effort.values())])
    return markdown_table(header, lines) if lines else "Nothing was trained yet."


def divide_steps(last: int) -> list[range]:
    """Steps 1 to `last` in windows of equal width, 8 at most."""
    width = math.ceil(last / WINDOWS)
    return [range(first, min(first + width, last + 1)) for first in range(1, last + 1, width)]


def window_table(title: str, curves: Mapping[str, Mapping[int, Estimate]]) -> str:
    """A metric's means over windows of steps, a line for each curve by its label; of one step at least."""
    windows = divide_steps(max(step for curve in curves.values() for step in curve))
    lines = [[label, *(show_mean(curve, window) for window in windows)] for label, curve in curves.items()]
    names = [f"{window[0]}–{window[-1]}" if len(window) > 1 else f"{window[0]}" for window in windows]
    return markdown_table([title, *names], lines)


def draw_success(curves: Mapping[str, Mapping[int, Estimate]]) -> Picture:
    """The success of the episodes that training sampled: a panel for each row by its label, the others behind it."""
    lines = [draw_line(label, {step: _cut(one) for step, one in curve.items()}) for label, curve in curves.items()]
    return Picture(
        name="learning",
        title="Success of the episodes sampled in training",
        panels=[
            Panel(
                title=textwrap.fill(line.name, _TITLE, break_on_hyphens=False),
                series=[line],
                behind=[one for one in lines if one is not line],
            )
            for line in lines
        ],
        x_label="training step",
        y_label="success",
    )


def _cut(share: Estimate) -> Estimate:
    """The interval of a few seeds may reach where no share can; a band of it would be all that is seen."""
    return replace(share, low=max(share.low, 0.0), high=min(share.high, 1.0))


def show_mean(curve: Mapping[int, Estimate], steps: Sequence[int]) -> str:
    """The mean over those of the steps that the curve has; empty where it has none."""
    values = [curve[step].mean for step in steps if step in curve]
    return f"{sum(values) / len(values):.3f}" if values else ""


def flatten_run(key: str, row: RowResults) -> dict[str, float]:
    """What training took, how far it came, and the success of the episodes it sampled, by step."""
    flat = {f"{key}/{name}": total for name, total in sum_effort(row).items()}
    if row.trained:
        flat |= {
            f"{key}/steps": float(count_steps(row, "train")),
            f"{key}/sft_steps": float(count_steps(row, "sft")),
        }
    for step, point in average_steps(row, "train", "rollout/success").items():
        flat |= point.flat(f"{key}/success_at/{step}")
    return flat
