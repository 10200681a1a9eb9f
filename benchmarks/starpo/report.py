"""The report of `turnwise bench starpo`: success, generalisation, stability, training, curves.

Invariant: every row is shown, whatever there is of it: its results, how many of its steps are trained, or "not run".
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.games.curve import read_curve
from benchmarks.games.trap import CURVES, draw_line
from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.jobs import JobResult
from benchmarks.harness.report import Picture, Report
from benchmarks.harness.results import estimate_mean, markdown_table, show_number
from benchmarks.harness.row_report import (
    count_seeds,
    describe_state,
    divide_steps,
    effort_table,
    flatten_run,
    show_mean,
    window_table,
)
from benchmarks.harness.rows import RowResults, average_steps, compare, count_steps, estimate_right, gather, read_values
from benchmarks.harness.training import read_column
from benchmarks.starpo.changes import Change
from benchmarks.starpo.rows import COLD_START, ROWS, TRAINED
from turnwise.runs import Panel

_KEYS = {
    "rollout/reward_std_in_group": "reward_std_at",
    "health/token_entropy": "token_entropy_at",
    "policy/grad_norm": "grad_norm_at",
}
"""Metrics of training by step in the results file, beside success."""


def report(
    seeds: Sequence[int], results: JobResults, steps: Mapping[str, int], *, changes: Sequence[Change], page: str
) -> Report:
    """From the results of the jobs that are done, and of training that is not, to what is published.

    `steps` are those that each trained row is to be trained for.
    """
    rows = {row.key: gather(row.key, results, seeds) for row in ROWS}
    states = {key: describe_state(found, steps.get(key)) for key, found in rows.items()}
    begun = any(count_steps(found, "train") for found in rows.values())
    parts = {
        "table": _table(rows, states, len(seeds)),
        "generalisation": _generalisation(rows, states, changes),
        "stability": _stability(rows) if begun else "Nothing was trained yet.",
        "curves": f"![Success, in-group reward std, entropy and gradient norm](img/{page}-curves.png)" if begun else "",
        "training": effort_table([(row.label, rows[row.key], steps.get(row.key)) for row in ROWS]),
    }
    about = {f"state/{key}": state for key, state in states.items() if state}
    return Report(results=_flatten(rows, changes), parts=parts, pictures=[_draw(rows)] if begun else [], about=about)


def _table(rows: Mapping[str, RowResults], states: Mapping[str, str], seeds: int) -> str:
    header = ["", "success, greedy", "sampled", "less the cold start", "won, lost", "seeds"]
    lines = []
    for row in ROWS:
        found = rows[row.key]
        if states[row.key]:
            lines.append([row.name, states[row.key], *[""] * 4])
            continue
        less = compare(found, rows[COLD_START.key]) if row is not COLD_START else None
        lines.append(
            [
                row.name,
                estimate_right(found, "greedy").show(),
                estimate_right(found, "sampled").show(),
                less.difference.show(signed=True) if less else "",
                f"{less.won}, {less.lost}" if less else "",
                count_seeds(found, seeds),
            ]
        )
    return markdown_table(header, lines)


def _generalisation(rows: Mapping[str, RowResults], states: Mapping[str, str], changes: Sequence[Change]) -> str:
    """Success in each changed game, and in a table of its own what it is less the cold start."""
    absolute, paired = [], []
    for row in ROWS:
        found = rows[row.key]
        if states[row.key]:
            absolute.append([row.name, states[row.key], *[""] * (len(changes) - 1)])
            continue
        absolute.append([row.name, *(estimate_right(found, change.key).show() for change in changes)])
        if row is not COLD_START and compare(found, rows[COLD_START.key]) is not None:
            paired.append([row.name, *(_show_less(found, rows[COLD_START.key], change) for change in changes)])
    labels = [change.label for change in changes]
    tables = [markdown_table(["success, greedy", *labels], absolute)]
    tables += [markdown_table(["less the cold start", *labels], paired)] if paired else []
    return "\n\n".join(tables)


def _show_less(row: RowResults, cold: RowResults, change: Change) -> str:
    less = compare(row, cold, change.key)
    return less.difference.show(signed=True) if less else ""


def _stability(rows: Mapping[str, RowResults]) -> str:
    """Success of sampled episodes by windows of steps; then alarms, rollbacks, and the signs of the Echo Trap."""
    begun = {row.label: rows[row.key] for row in TRAINED if count_steps(rows[row.key], "train")}
    curves = {label: average_steps(row, "train", "rollout/success") for label, row in begun.items()}
    header = ["", "first alarm at step", "runs with one", "rollbacks", "in-group reward std, first steps", "last steps"]
    lines = []
    for label, row in begun.items():
        alarms, rollbacks = _read_alarms(row), _read_rollbacks(row)
        deviation = average_steps(row, "train", "rollout/reward_std_in_group")
        first, last = _ends(row)
        lines.append(
            [
                label,
                estimate_mean(alarms).show(1) if alarms else "–",
                f"{len(alarms)} of {len(_runs(row))}",
                f"{statistics.fmean(rollbacks):.1f}",
                show_mean(deviation, first),
                show_mean(deviation, last),
                show_number(_highest_gradient(row), 2),
            ]
        )
    return "\n\n".join(
        [
            window_table("success of sampled episodes, steps", curves),
            markdown_table([*header, "highest gradient norm"], lines),
        ]
    )


def _runs(row: RowResults) -> list[JobResult]:
    """Its runs of training that have come to their first step."""
    return [run for run in row.trained.values() if read_values(run, "train", "step")]


def _read_alarms(row: RowResults) -> list[float]:
    """The step of the first alarm of each run that had one."""
    found = [read_curve(run).alarm_at for run in _runs(row)]
    return [float(step) for step in found if step is not None]


def _read_rollbacks(row: RowResults) -> list[float]:
    return [read_column(run, "train", "stability/rollbacks")[-1] for run in _runs(row)]


def _highest_gradient(row: RowResults) -> float:
    """NaN where no update was made yet, as while a critic learns alone."""
    norms = [norm for run in _runs(row) for norm in read_values(run, "train", "policy/grad_norm")]
    return max((norm for norm in norms if math.isfinite(norm)), default=math.nan)


def _ends(row: RowResults) -> tuple[range, range]:
    """The first and the last window of the steps that it was trained for."""
    windows = divide_steps(count_steps(row, "train"))
    return windows[0], windows[-1]


def _draw(rows: Mapping[str, RowResults]) -> Picture:
    """A line for each row that is trained; a metric that is no share is divided by its highest mean, as titled."""
    panels = []
    for title, column in CURVES.items():
        curves = {row.label: average_steps(rows[row.key], "train", column) for row in TRAINED}
        curves = {label: curve for label, curve in curves.items() if curve}
        top = max((point.mean for curve in curves.values() for point in curve.values()), default=1.0)
        scale = 1.0 if title == "success" or top <= 0 else top
        series = [draw_line(label, curve, scale) for label, curve in curves.items()]
        panels.append(Panel(title=title if scale == 1 else f"{title} (1 = {top:.2g})", series=series))
    return Picture(
        name="curves", title="Training, with and without StarPO-S", panels=panels, x_label="step", y_label=""
    )


def _flatten(rows: Mapping[str, RowResults], changes: Sequence[Change]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, row in rows.items():
        flat |= flatten_run(key, row)
        if count_steps(row, "train"):
            flat |= _flatten_stability(key, row)
        if row.evaluated:
            flat[f"{key}/seeds"] = float(len(row.evaluated))
            flat |= estimate_right(row, "sampled").flat(f"{key}/success_sampled")
            names = {"greedy": f"{key}/success"} | {change.key: f"{key}/{change.key}" for change in changes}
            for section, name in names.items():
                flat |= estimate_right(row, section).flat(name)
                less = compare(row, rows[COLD_START.key], section) if key != COLD_START.key else None
                flat |= less.flat(f"{name}/less_cold_start") if less else {}
    return flat


def _flatten_stability(key: str, row: RowResults) -> dict[str, float]:
    alarms, runs = _read_alarms(row), _runs(row)
    flat = {
        f"{key}/alarmed": float(len(alarms)),
        f"{key}/alarmed_of": float(len(runs)),
        f"{key}/rollbacks": statistics.fmean(_read_rollbacks(row)),
    }
    highest = _highest_gradient(row)
    flat |= {f"{key}/grad_norm_highest": highest} if math.isfinite(highest) else {}
    flat |= estimate_mean(alarms).flat(f"{key}/alarm_at") if alarms else {}
    deviation = average_steps(row, "train", "rollout/reward_std_in_group")
    for name, window in zip(("first", "last"), _ends(row), strict=True):
        values = [deviation[step].mean for step in window if step in deviation]
        flat |= {f"{key}/reward_std_{name}": statistics.fmean(values)} if values else {}
    for column, name in _KEYS.items():
        for step, point in average_steps(row, "train", column).items():
            flat |= point.flat(f"{key}/{name}/{step}")
    return flat
