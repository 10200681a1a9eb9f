"""The report of `turnwise bench credit`: tables and flat results of moments and of learning, and the learning curves.

Invariant: every number is a mean over seeds. Differences between estimators are taken within a seed, which shares its
cold start, tasks and episode seed, before their mean is.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.credit.candidates import CANDIDATES
from benchmarks.harness.benchmark import JobResults, Scope
from benchmarks.harness.jobs import JobResult
from benchmarks.harness.report import Picture, Report
from benchmarks.harness.results import Estimate, draw_line, estimate_mean, markdown_table, show_number
from benchmarks.harness.training import read_column
from turnwise.runs import Panel

Moments: TypeAlias = Mapping[str, Estimate]
"""Of one candidate in one world: `{"bias": ..., "variance": ..., "snr": ...}`."""
Runs: TypeAlias = Sequence[JobResult]
"""The training jobs of one estimator, seed by seed."""

GAME = "frozen_lake"
BASE = "grpo"
"""What the other estimators are compared with."""


def report(scope: Scope, results: JobResults) -> Report:
    """From the jobs' results to what is published."""
    moments = {
        (world, candidate.name): _collect_moments(
            [results[f"moments/{world}/seed-{seed}"][candidate.name] for seed in range(scope.seeds)]
        )
        for world in _names(results, "moments")
        for candidate in CANDIDATES
    }
    runs = {
        name: [results[f"learning/{name}/seed-{seed}"] for seed in range(scope.seeds)]
        for name in _names(results, "learning")
    }
    learning = {name: summarise_learning(runs[name], runs[BASE]) for name in runs}
    curves = {name: average_curve(runs[name]) for name in runs}
    published: dict[str, float] = {}
    for (world, name), found in moments.items():
        published |= _flatten(f"oracle/{world}/{name}", found)
    for name in runs:
        published |= _flatten(f"{GAME}/{name}", learning[name]) | _flatten(f"{GAME}/{name}/success_at", curves[name])
        published |= {f"{GAME}/{name}/{key}": total for key, total in count_effort(runs[name]).items()}
    return Report(
        results=published,
        parts={
            "learning": _learning_table(learning, {name: count_effort(each) for name, each in runs.items()}),
            "bias": _moments_table(moments, lambda found: f"{_show(found, 'bias', 2)} ({_show(found, 'cosine', 3)})"),
            "variance": _moments_table(moments, lambda found: _show(found, "variance", 1)),
            "snr": _moments_table(moments, lambda found: _show(found, "snr", 2)),
        },
        pictures=[_draw_learning(curves)],
        about={"seeds": ", ".join(map(str, range(scope.seeds)))},
    )


def summarise_learning(runs: Runs, base: Runs) -> dict[str, Estimate]:
    """Held-out success before and after training and over its evaluations, and its differences within each seed."""
    success = [read_column(run, "evaluate", "evaluate/success") for run in runs]
    other = [read_column(run, "evaluate", "evaluate/success") for run in base]
    return {
        "before": estimate_mean([one[0] for one in success]),
        "success": estimate_mean([one[-1] for one in success]),
        "gain": estimate_mean([one[-1] - one[0] for one in success]),
        f"minus_{BASE}": estimate_mean([one[-1] - two[-1] for one, two in zip(success, other, strict=True)]),
        "over_training": estimate_mean([statistics.fmean(one[1:] or one) for one in success]),
    }


def average_curve(runs: Runs) -> dict[str, Estimate]:
    """Held-out success by the step of its evaluation: `{"0": ..., "2": ...}`."""
    steps = read_column(runs[0], "evaluate", "step")
    success = [read_column(run, "evaluate", "evaluate/success") for run in runs]
    return {f"{step:g}": estimate_mean(at) for step, at in zip(steps, zip(*success, strict=True), strict=True)}


def count_effort(runs: Runs) -> dict[str, float]:
    """The mean cost of a run: episodes sampled for training, and optimizer steps of the policy."""
    columns = {"episodes": "rollout/episodes", "updates": "policy/steps_taken"}
    return {
        key: statistics.fmean(math.fsum(read_column(run, "train", column)) for run in runs)
        for key, column in columns.items()
    }


def _collect_moments(per_seed: Sequence[object]) -> dict[str, Estimate]:
    """A moment that is undefined for some seed, such as the direction of a mean that is all noise, is left out."""
    found: dict[str, list[float]] = {}
    for moments in per_seed:
        assert isinstance(moments, Mapping)
        for name, value in moments.items():
            found.setdefault(name, []).append(math.nan if value is None else float(value))
    return {name: estimate_mean(values) for name, values in found.items() if all(map(math.isfinite, values))}


def _moments_table(moments: Mapping[tuple[str, str], Moments], show: Callable[[Moments], str]) -> str:
    worlds = list(dict.fromkeys(world for world, _ in moments))
    rows = [[candidate.label, *(show(moments[world, candidate.name]) for world in worlds)] for candidate in CANDIDATES]
    return markdown_table(["estimator", *worlds], rows)


def _learning_table(learning: Mapping[str, Moments], effort: Mapping[str, Mapping[str, float]]) -> str:
    header = ["estimator", "before", "after", "gain", f"after, less {BASE}'s", "over training", "episodes", "updates"]
    rows = []
    for name, found in learning.items():
        cells = [found[key].show() for key in ("before", "success")]
        cells += [found[key].show(signed=True) for key in ("gain", f"minus_{BASE}")]
        cells[-1] = "" if name == BASE else cells[-1]
        cells += [found["over_training"].show(), f"{effort[name]['episodes']:g}", f"{effort[name]['updates']:g}"]
        rows.append([name, *cells])
    return markdown_table(header, rows)


def _draw_learning(curves: Mapping[str, Mapping[str, Estimate]]) -> Picture:
    lines = {name: draw_line(name, curve) for name, curve in curves.items()}
    panels = [
        Panel(title=name, series=[line], behind=[other for other in lines.values() if other is not line])
        for name, line in lines.items()
    ]
    return Picture(
        name="learning",
        title="Held-out success on FrozenLake",
        panels=panels,
        x_label="training step",
        y_label="success",
    )


def _names(results: JobResults, kind: str) -> list[str]:
    """The second part of the jobs' names: `["gae", "grpo"]` of `learning/gae/seed-0`, `learning/grpo/seed-0`, ..."""
    return list(dict.fromkeys(name.split("/")[1] for name in results if name.startswith(f"{kind}/")))


def _flatten(prefix: str, estimates: Mapping[str, Estimate]) -> dict[str, float]:
    return {
        name: value for key, estimate in estimates.items() for name, value in estimate.flat(f"{prefix}/{key}").items()
    }


def _show(found: Moments, name: str, digits: int) -> str:
    return show_number(found[name].mean, digits) if name in found else "–"
