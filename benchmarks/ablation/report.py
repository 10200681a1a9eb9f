"""The report of `turnwise bench ablation`: success and differences to the recipe, training by windows, curves.

Invariant: every row is shown, whatever there is of it: its results, how many of its steps are trained, or "not run".
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from benchmarks.ablation.rows import Row
from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.evaluation import DECODINGS
from benchmarks.harness.report import Report
from benchmarks.harness.results import Estimate, markdown_table
from benchmarks.harness.row_report import (
    count_seeds,
    describe_state,
    draw_success,
    effort_table,
    flatten_run,
    window_table,
)
from benchmarks.harness.rows import Paired, RowResults, average_steps, compare, estimate_right, gather, read_values
from turnwise.types import Json

_COUNTS = ("kept", "dropped", "zero_variance")
_DIFFERING = "groups/differing"
"""The share of a step's groups whose rewards differ, from the filter's counts."""
_WINDOWS = {
    "success, steps": ("rollout/success", "success_at"),
    "entropy per token, steps": ("health/token_entropy", "token_entropy_at"),
    "groups whose rewards differ, steps": (_DIFFERING, "differing_at"),
}
"""By the title of its table, each with the metric and its name in the results file."""


def report(
    rows: Sequence[Row],
    seeds: Sequence[int],
    results: JobResults,
    steps: Mapping[str, int],
    *,
    otherwise: Collection[str],
    page: str,
) -> Report:
    """From the results of the jobs that are done, and of training that is not, to what is published.

    `steps` are those that each trained row is to be trained for, `otherwise` the rows that also play in settings of
    their own.
    """
    found = {row.key: _with_differing(gather(row.key, results, seeds)) for row in rows}
    states = {key: describe_state(one, steps.get(key)) for key, one in found.items()}
    curves = _curves(rows, found)
    parts = {
        "rows": markdown_table(["row", "what it is"], [[f"`{row.key}`", row.about] for row in rows], left=2),
        "table": _table(rows, found, states, len(seeds)),
        "comparisons": _count_comparisons(rows, found),
        "own": _own_table([row for row in rows if row.key in otherwise], found, states),
        "training": effort_table([(row.label, found[row.key], steps.get(row.key)) for row in rows]),
        "windows": _windows(curves),
        "curves": f"![Success of the episodes sampled in training](img/{page}-learning.png)" if curves else "",
    }
    names = {row.label: row.change.shown if row.change else row.label for row in rows}
    pictures = [draw_success({names[label]: of["rollout/success"] for label, of in curves.items()})] if curves else []
    about = {f"state/{key}": state for key, state in states.items() if state}
    return Report(results=_flatten(rows, found, otherwise), parts=parts, pictures=pictures, about=about)


def name_own(section: str) -> str:
    """The section of a result that a row played in its own settings."""
    return f"own-{section}"


def _table(rows: Sequence[Row], found: Mapping[str, RowResults], states: Mapping[str, str], seeds: int) -> str:
    header = ["", "success, greedy", "sampled", "less the recipe's", "won, lost", "by seed", "less its cold start"]
    lines = []
    for row in rows:
        one = found[row.key]
        if states[row.key]:
            lines.append([row.label, states[row.key], *[""] * 6])
            continue
        less = _less_recipe(row, found)
        gained = compare(one, found[row.start]) if row.trained else None
        lines.append(
            [
                row.label,
                estimate_right(one, "greedy").show(),
                estimate_right(one, "sampled").show(),
                less.difference.show(signed=True) if less else "",
                f"{less.won}, {less.lost}" if less else "",
                ", ".join(f"{one:+.3f}" for one in _by_seed(row, found).values()),
                gained.difference.show(signed=True) if gained else "",
                count_seeds(one, seeds),
            ]
        )
    return markdown_table([*header, "seeds"], lines)


def _less_recipe(row: Row, found: Mapping[str, RowResults], section: str = "greedy") -> Paired | None:
    """A row of a change less the recipe's row of its kind, over the seeds that both have."""
    return compare(found[row.key], found[row.counterpart], section) if row.counterpart else None


def _by_seed(row: Row, found: Mapping[str, RowResults]) -> dict[int, float]:
    """The same difference, seed by seed."""
    one, other = found[row.key], found.get(row.counterpart)
    single = {seed: RowResults(evaluated={seed: result}, trained={}) for seed, result in one.evaluated.items()}
    less = {seed: compare(alone, other) for seed, alone in single.items()} if other else {}
    return {seed: paired.difference.mean for seed, paired in less.items() if paired is not None}


def _count_comparisons(rows: Sequence[Row], found: Mapping[str, RowResults]) -> str:
    """How many differences there are, and how many of them chance alone would make look real."""
    count = sum(bool(row.counterpart) for row in rows)
    done = [less.difference for row in rows if (less := _less_recipe(row, found)) is not None]
    clear = sum(one.low > 0 or one.high < 0 for one in done)
    words = f"Comparisons with the recipe: {count}, of which {len(done)} could be made, {clear} of them clear of zero."
    if not done:
        return words
    return (
        f"{words} Were no change worth anything, 5% would be by the choice of tasks alone, {0.05 * len(done):.2g} of "
        f"{len(done)} and, if they were independent, at least one in {1 - 0.95 ** len(done):.0%} of such tables; and "
        "more since training itself differs from run to run, which no interval here holds."
    )


def _own_table(rows: Sequence[Row], found: Mapping[str, RowResults], states: Mapping[str, str]) -> str:
    """Rows that also play in settings of their own, and the difference there to the recipe's row in its own."""
    if not rows:
        return "No change acts on the episodes that are evaluated."
    own = {row.key: _in_own(found[row.key]) for row in rows}
    lines = []
    for row in rows:
        if states[row.key]:
            lines.append([row.label, states[row.key], *[""] * 3])
            continue
        less = compare(own[row.key], found[row.counterpart])
        lines.append(
            [
                row.label,
                estimate_right(own[row.key], "greedy").show(),
                estimate_right(own[row.key], "sampled").show(),
                less.difference.show(signed=True) if less else "",
                f"{less.won}, {less.lost}" if less else "",
            ]
        )
    return markdown_table(["", "success, greedy", "sampled", "less the recipe's", "won, lost"], lines)


def _in_own(row: RowResults) -> RowResults:
    """A row's results in its own settings, under the names of those in the recipe's."""
    evaluated = {seed: {name: result[name_own(name)] for name in DECODINGS} for seed, result in row.evaluated.items()}
    return replace(row, evaluated=evaluated)


def _curves(rows: Sequence[Row], found: Mapping[str, RowResults]) -> dict[str, dict[str, dict[int, Estimate]]]:
    """By label and metric, the curves of the rows that have begun to train."""
    metrics = [metric for metric, _ in _WINDOWS.values()]
    curves = {row.label: {one: average_steps(found[row.key], "train", one) for one in metrics} for row in rows}
    return {label: of for label, of in curves.items() if of["rollout/success"]}


def _windows(curves: Mapping[str, Mapping[str, Mapping[int, Estimate]]]) -> str:
    tables = []
    for title, (metric, _) in _WINDOWS.items():
        measured = {label: of[metric] for label, of in curves.items()}
        tables += [window_table(title, measured)] if any(measured.values()) else []
    return "\n\n".join(tables) or "Nothing was trained yet."


def _with_differing(row: RowResults) -> RowResults:
    """With the share of groups whose rewards differ as one more column of training."""
    return replace(row, trained={seed: _add_differing(result) for seed, result in row.trained.items()})


def _add_differing(result: Mapping[str, Json]) -> Mapping[str, Json]:
    kept, dropped, equal = (read_values(result, "train", f"filter/{name}") for name in _COUNTS)
    shares = [
        1 - alike / (held + left) if held + left else math.nan
        for held, left, alike in zip(kept, dropped, equal, strict=True)
    ]
    train = result["train"]
    assert isinstance(train, Mapping)
    return {**result, "train": {**train, _DIFFERING: shares}} if shares else result


def _flatten(rows: Sequence[Row], found: Mapping[str, RowResults], otherwise: Collection[str]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for row in rows:
        key, one = row.key, found[row.key]
        flat |= flatten_run(key, one)
        for metric, name in _WINDOWS.values():
            for step, point in average_steps(one, "train", metric).items():
                flat |= point.flat(f"{key}/{name}/{step}")
        if one.evaluated:
            flat[f"{key}/seeds"] = float(len(one.evaluated))
            flat |= _flatten_success(row, found)
            flat |= _flatten_own(row, found) if key in otherwise else {}
    return flat


def _flatten_success(row: Row, found: Mapping[str, RowResults]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for section, name in (("greedy", "success"), ("sampled", "success_sampled")):
        name = f"{row.key}/{name}"
        flat |= estimate_right(found[row.key], section).flat(name)
        less = _less_recipe(row, found, section)
        flat |= less.flat(f"{name}/less_recipe") if less else {}
        gained = compare(found[row.key], found[row.start], section) if row.trained else None
        flat |= gained.flat(f"{name}/less_cold_start") if gained else {}
    return flat | {f"{row.key}/success/less_recipe/seed/{seed}": less for seed, less in _by_seed(row, found).items()}


def _flatten_own(row: Row, found: Mapping[str, RowResults]) -> dict[str, float]:
    own = _in_own(found[row.key])
    flat = estimate_right(own, "greedy").flat(f"{row.key}/own_success")
    flat |= estimate_right(own, "sampled").flat(f"{row.key}/own_success_sampled")
    less = compare(own, found[row.counterpart])
    return flat | (less.flat(f"{row.key}/own_success/less_recipe") if less else {})
