"""The report of `turnwise bench multihop` over a recipe: the table, its ceilings, kinds of questions, masks, training.

Invariant: every row is shown, whatever there is of it: its results, how many of its steps are trained, or "not run".
"""

from collections.abc import Mapping, Sequence

from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.report import Report
from benchmarks.harness.results import Estimate, markdown_table
from benchmarks.harness.row_report import (
    count_seeds,
    describe_state,
    draw_success,
    effort_table,
    flatten_run,
    show_mean,
    window_table,
)
from benchmarks.harness.rows import (
    RowResults,
    average_steps,
    compare,
    compare_training,
    estimate_right,
    estimate_solved,
    gather,
    read_metric,
)
from benchmarks.multihop.results import summarise_kinds
from benchmarks.multihop.rows import ABLATIONS, BASELINES, CEILINGS, EXPLORING, METHODS, ONE_SEARCH, READING, SFT, Row

_TRAINED: Sequence[Row] = (*METHODS, *ABLATIONS)
_COMPARED: Sequence[Row] = (*BASELINES, ONE_SEARCH, *_TRAINED)


def report(seeds: Sequence[int], results: JobResults, steps: Mapping[str, int], *, page: str) -> Report:
    """From the results of the jobs that are done, and of training that is not, to what is published.

    `steps` are those that each method is to be trained for.
    """
    rows = {row.key: gather(row.key, results, seeds) for row in (*_COMPARED, *CEILINGS)}
    states = {key: describe_state(found, steps.get(key)) for key, found in rows.items()}
    curves = {row.label: curve for row in _TRAINED if (curve := _success(rows[row.key]))}
    parts = {
        "table": _table(rows, states, len(seeds)),
        "ceilings": _ceilings(rows, states),
        "kinds": _kinds(rows),
        "ablations": _ablations(rows, states),
        "training": _training(rows, steps),
        "curves": _curves(rows, curves, page),
    }
    pictures = [draw_success(curves)] if curves else []
    about = {f"state/{key}": state for key, state in states.items() if state}
    return Report(results=_flatten(rows), parts=parts, pictures=pictures, about=about)


def _table(rows: Mapping[str, RowResults], states: Mapping[str, str], seeds: int) -> str:
    header = ["", "exact match, greedy", "sampled", "less the cold start", "won, lost", "turns", "seeds"]
    lines = []
    for row in _COMPARED:
        found = rows[row.key]
        if states[row.key]:
            lines.append([_name(row), states[row.key], *[""] * 5])
            continue
        less = compare(found, rows[SFT]) if row.key != SFT else None
        lines.append(
            [
                _name(row),
                estimate_right(found, "greedy").show(),
                estimate_right(found, "sampled").show(),
                less.difference.show(signed=True) if less else "",
                f"{less.won}, {less.lost}" if less else "",
                f"{read_metric(found, 'greedy', 'evaluate/turns'):.1f}",
                count_seeds(found, seeds),
            ]
        )
    return markdown_table(header, lines)


def _ceilings(rows: Mapping[str, RowResults], states: Mapping[str, str]) -> str:
    reading = states[READING.key] or estimate_right(rows[READING.key], "greedy").show()
    lines = [[f"reading: {_name(READING)}, greedy", reading]]
    passes = _pass_curve(rows[EXPLORING.key])
    lines += [
        [f"exploring: {_name(EXPLORING)}, pass@{k}", _show_pass(rows[EXPLORING.key], k, value)]
        for k, value in passes.items()
    ]
    if not passes:
        lines.append([f"exploring: {_name(EXPLORING)}, pass@{EXPLORING.samples}", states[EXPLORING.key]])
    return markdown_table(["ceiling", "exact match"], lines)


def _show_pass(row: RowResults, k: int, value: float) -> str:
    return estimate_solved(row).show() if k == EXPLORING.samples else f"{value:.3f}"


def _pass_curve(row: RowResults) -> dict[int, float]:
    ks = [2**power for power in range(EXPLORING.samples.bit_length()) if row.evaluated]
    return {k: read_metric(row, "sampled", f"evaluate/pass@{k}") for k in ks}


def _kinds(rows: Mapping[str, RowResults]) -> str:
    found = {
        row: summarise_kinds(list(rows[row.key].evaluated.values()))
        for row in (*_COMPARED, READING)
        if rows[row.key].evaluated
    }
    kinds = list(dict.fromkeys(kind for one in found.values() for kind in one))
    if not kinds:
        return "not run"
    lines = [[row.label, *(f"{one[kind].mean:.3f}" for kind in kinds)] for row, one in found.items()]
    return markdown_table(["", *(kind.replace("=", " ") for kind in kinds)], lines)


def _ablations(rows: Mapping[str, RowResults], states: Mapping[str, str]) -> str:
    """Each ablation less the row with its masks on: over questions, and in training over the steps of both."""
    header = ["", "exact match, greedy", "less with masks", "won, lost", "sampled in training", "less with masks"]
    lines = []
    for row in ABLATIONS:
        found, whole = rows[row.key], rows[row.masked]
        less, training = compare(found, whole), compare_training(found, whole)
        lines.append(
            [
                _name(row),
                states[row.key] or estimate_right(found, "greedy").show(),
                less.difference.show(signed=True) if less else "",
                f"{less.won}, {less.lost}" if less else "",
                f"{training[0]:.3f}" if training else "",
                f"{training[1]:+.3f}" if training else "",
            ]
        )
    return markdown_table(header, lines)


def _training(rows: Mapping[str, RowResults], steps: Mapping[str, int]) -> str:
    return effort_table([(row.label, rows[row.key], steps.get(row.key)) for row in (*_COMPARED, READING)])


def _curves(rows: Mapping[str, RowResults], curves: Mapping[str, Mapping[int, Estimate]], page: str) -> str:
    """Exact match on held-out questions by step, success of sampled episodes by parts of training, and the picture."""
    if not curves:
        return ""
    asked = {row.label: average_steps(rows[row.key], "evaluate", "evaluate/success") for row in _TRAINED}
    steps = sorted({step for one in asked.values() for step in one})
    lines = [[label, *(show_mean(asked[label], [step]) for step in steps)] for label in curves]
    return "\n\n".join(
        [
            markdown_table(["exact match, greedy, after step", *map(str, steps)], lines),
            window_table("success of sampled episodes, steps", curves),
            f"![Success of the episodes sampled in training](img/{page}-learning.png)",
        ]
    )


def _success(row: RowResults) -> dict[int, Estimate]:
    return average_steps(row, "train", "rollout/success")


def _flatten(rows: Mapping[str, RowResults]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, row in rows.items():
        flat |= flatten_run(key, row)
        for step, point in average_steps(row, "evaluate", "evaluate/success").items() if _success(row) else ():
            flat |= point.flat(f"{key}/evaluated_at/{step}")
        if row.evaluated:
            flat[f"{key}/seeds"] = float(len(row.evaluated))
            flat |= _flatten_answers(key, row, rows)
    return flat


def _flatten_answers(key: str, row: RowResults, rows: Mapping[str, RowResults]) -> dict[str, float]:
    if key == EXPLORING.key:
        passes = {f"{key}/pass_at/{k}": value for k, value in _pass_curve(row).items()}
        return passes | estimate_solved(row).flat(f"{key}/pass_at/{EXPLORING.samples}")
    flat = estimate_right(row, "greedy").flat(f"{key}/em") | estimate_right(row, "sampled").flat(f"{key}/em_sampled")
    flat[f"{key}/turns"] = read_metric(row, "greedy", "evaluate/turns")
    for kind, estimate in summarise_kinds(list(row.evaluated.values())).items():
        flat[f"{key}/em/{kind}"] = estimate.mean  # its interval is over seeds, and all others here are over questions
    masked = {one.key: one.masked for one in ABLATIONS}
    for name, other in (("less_cold_start", SFT), ("less_masked", masked.get(key, ""))):
        if other and other != key and (less := compare(row, rows[other])) is not None:
            flat |= less.flat(f"{key}/{name}")
    return flat


def _name(row: Row) -> str:
    """With the key that `--rows` takes."""
    return f"{row.label} (`{row.key}`)"
