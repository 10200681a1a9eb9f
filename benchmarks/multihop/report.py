"""The report of `turnwise bench multihop --quick`: the table, the ablations of the masks, curves. All rows are done."""

from collections.abc import Mapping, Sequence

from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.report import Picture, Report
from benchmarks.harness.results import Estimate, draw_line, markdown_table
from benchmarks.multihop.results import (
    Ratio,
    Runs,
    average_curve,
    compare_baselines,
    count_effort,
    subtract_masked,
    summarise_answers,
    summarise_training,
)
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS, Method, Row
from turnwise.runs import Panel, Series


def report(seeds: Sequence[int], results: JobResults) -> Report:
    """From the jobs' results to what is published."""
    rows: list[Row] = [*BASELINES, *METHODS, *ABLATIONS]
    evaluated = {row.key: _jobs(results, "evaluation", row.key, seeds) for row in rows}
    trained = {row.key: _jobs(results, "training", row.key, seeds) for row in (*METHODS, *ABLATIONS)}
    ratios = {key: compare_baselines(runs, evaluated) for key, runs in evaluated.items()}
    published: dict[str, float] = {}
    for key, runs in evaluated.items():
        published |= _flatten(key, summarise_answers(runs))
        published |= {f"{key}/times_{name}": found.value for name, found in ratios[key].items()}
    for key, runs in trained.items():
        published |= _flatten(key, summarise_training(runs)) | _flatten(f"{key}/success_at", average_curve(runs))
        published |= {f"{key}/{name}": total for name, total in count_effort(runs).items()}
    for row in ABLATIONS:
        if row.masked:
            published |= _flatten(f"{row.key}/less_masked", subtract_masked(row, evaluated, trained))
    for name in ("em", "times_naive_rag", "times_untrained"):
        published[f"methods/least_{name}"] = min(published[f"{row.key}/{name}"] for row in METHODS)
    parts = {"table": _table(evaluated, trained, ratios), "ablations": _ablation_table(evaluated, trained)}
    return Report(results=published, parts=parts, pictures=[_draw_learning(trained)])


def _table(
    evaluated: Mapping[str, Runs], trained: Mapping[str, Runs], ratios: Mapping[str, Mapping[str, Ratio]]
) -> str:
    header = ["", "exact match, greedy", "sampled", "× naive RAG", "× untrained", "turns", "episodes", "updates"]
    rows = []
    for row in _compared():
        found = summarise_answers(evaluated[row.key])
        shown, effort = ["", ""], ["", ""]
        if isinstance(row, Method):
            shown = [ratios[row.key][name].show() for name in ("naive_rag", "untrained")]
            effort = [f"{count:g}" for count in count_effort(trained[row.key]).values()]
        answers = [found["em"].show(), found["em_sampled"].show()]
        rows.append([row.label, *answers, *shown, f"{found['turns'].mean:.1f}", *effort])
    return markdown_table(header, rows)


def _ablation_table(evaluated: Mapping[str, Runs], trained: Mapping[str, Runs]) -> str:
    """Each result, and beside it how much it differs from that of the row with its masks on."""
    header = ["", "exact match, greedy", "Δ", "sampled", "Δ", "over training", "Δ"]
    rows = []
    for whole, ablations in _with_ablations():
        for row in (whole, *ablations):
            found = summarise_answers(evaluated[row.key]) | summarise_training(trained[row.key])
            less = subtract_masked(row, evaluated, trained) if row.masked else {}
            cells = []
            for name in ("em", "em_sampled", "over_training"):
                cells += [found[name].show(), less[name].show(signed=True) if less else ""]
            rows.append([row.label, *cells])
    return markdown_table(header, rows)


def _draw_learning(trained: Mapping[str, Runs]) -> Picture:
    """A panel for each method, the others behind it; then one for each that has ablations, beside them."""
    lines = {row.key: _line(row.label, trained[row.key]) for row in METHODS}
    panels = [
        Panel(title=line.name, series=[line], behind=[other for other in lines.values() if other is not line])
        for line in lines.values()
    ]
    for whole, ablations in _with_ablations():
        series = [_line("all masks", trained[whole.key])]
        series += [_line(row.without, trained[row.key]) for row in ablations]
        panels.append(Panel(title=f"{whole.label}, masks", series=series))
    return Picture(
        name="learning",
        title="Success of the episodes sampled in training",
        panels=panels,
        x_label="training step",
        y_label="success",
    )


def _compared() -> list[Row]:
    """The rows of the table itself."""
    return [*BASELINES, *METHODS]


def _with_ablations() -> list[tuple[Method, list[Method]]]:
    """Every row that has ablations, and these."""
    rows = {row.key: row for row in (*METHODS, *ABLATIONS)}
    named = dict.fromkeys(row.masked for row in ABLATIONS if row.masked)
    return [(rows[key], [row for row in ABLATIONS if row.masked == key]) for key in named]


def _line(name: str, runs: Runs) -> Series:
    return draw_line(name, average_curve(runs))


def _jobs(results: JobResults, kind: str, key: str, seeds: Sequence[int]) -> Runs:
    return [results[f"{kind}/{key}/seed-{seed}"] for seed in seeds]


def _flatten(prefix: str, estimates: Mapping[str, Estimate]) -> dict[str, float]:
    return {
        name: value for key, estimate in estimates.items() for name, value in estimate.flat(f"{prefix}/{key}").items()
    }
