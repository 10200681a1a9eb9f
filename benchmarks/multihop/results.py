"""Estimates from the jobs of `turnwise bench multihop`: answers, training, ratios, differences.

Invariant: every number is a mean over seeds. A difference to the row with its masks on is taken within a seed, which
shares its cold start, tasks and episode seed, before its mean is.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.harness.jobs import JobResult
from benchmarks.harness.results import Estimate, estimate_mean
from benchmarks.harness.training import read_column
from benchmarks.multihop.rows import NAIVE_RAG, UNTRAINED, Method

Runs: TypeAlias = Sequence[JobResult]
"""The jobs of one row, seed by seed."""

SUCCESS = "evaluate/success"
_KIND = re.compile(r"evaluate/(?P<kind>[^/]+=.+)/success")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How many times as many questions as a baseline: `Ratio(value=48.5, lower_bound=False)` is shown as 48.5."""

    value: float
    lower_bound: bool
    """The baseline answered none and was credited with one: the true ratio is larger."""

    def show(self) -> str:
        digits = 1 if self.value < 100 else 0
        return f"{'> ' if self.lower_bound and self.value else ''}{self.value:.{digits}f}"


def summarise_answers(runs: Runs) -> dict[str, Estimate]:
    """Exact match by decoding, and the turns that greedy episodes took."""
    return {
        "em": estimate_mean(read_answers(runs, "greedy", SUCCESS)),
        "em_sampled": estimate_mean(read_answers(runs, "sampled", SUCCESS)),
        "turns": estimate_mean(read_answers(runs, "greedy", "evaluate/turns")),
    }


def summarise_kinds(runs: Runs) -> dict[str, Estimate]:
    """Greedy exact match by the questions' fields: `{"hops=2": ..., "source=2wiki": ...}`."""
    answers = runs[0]["greedy"]
    assert isinstance(answers, Mapping)
    kinds = [found["kind"] for name in answers if (found := _KIND.fullmatch(name))]
    return {kind: estimate_mean(read_answers(runs, "greedy", f"evaluate/{kind}/success")) for kind in kinds}


def summarise_training(runs: Runs) -> dict[str, Estimate]:
    """The mean success of all episodes sampled in training, which rewards learning early."""
    return {"over_training": estimate_mean(_over_training(runs))}


def average_curve(runs: Runs) -> dict[str, Estimate]:
    """The success of the episodes sampled at each training step: `{"1": ..., "2": ...}`."""
    steps = read_column(runs[0], "train", "step")
    success = [read_column(run, "train", "rollout/success") for run in runs]
    return {f"{step:g}": estimate_mean(at) for step, at in zip(steps, zip(*success, strict=True), strict=True)}


def count_effort(runs: Runs) -> dict[str, float]:
    """The mean cost of a run: episodes sampled for training, and optimizer steps of the policy."""
    columns = {"episodes": "rollout/episodes", "updates": "policy/steps_taken"}
    return {
        name: statistics.fmean(math.fsum(read_column(run, "train", column)) for run in runs)
        for name, column in columns.items()
    }


def subtract_masked(row: Method, evaluated: Mapping[str, Runs], trained: Mapping[str, Runs]) -> dict[str, Estimate]:
    """An ablation less its row, within each seed: `{"em": ..., "em_sampled": ..., "over_training": ...}`."""
    ours, whole = evaluated[row.key], evaluated[row.masked]
    return {
        "em": _difference(*(read_answers(runs, "greedy", SUCCESS) for runs in (ours, whole))),
        "em_sampled": _difference(*(read_answers(runs, "sampled", SUCCESS) for runs in (ours, whole))),
        "over_training": _difference(*(_over_training(trained[key]) for key in (row.key, row.masked))),
    }


def compare_baselines(runs: Runs, evaluated: Mapping[str, Runs]) -> dict[str, Ratio]:
    """Greedy exact match in multiples of that of naive RAG, the better of its rows, and of untrained tool calls."""
    rag = [ratio_of_means(runs, evaluated[key]) for key in (NAIVE_RAG, f"{NAIVE_RAG}-shown")]
    return {
        "naive_rag": min(rag, key=lambda ratio: ratio.value),
        "untrained": ratio_of_means(runs, evaluated[UNTRAINED]),
    }


def ratio_of_means(runs: Runs, base: Runs) -> Ratio:
    """The ratio of the means over seeds; a baseline that answered no question is taken to have answered one."""
    ours, theirs = (statistics.fmean(read_answers(each, "greedy", SUCCESS)) for each in (runs, base))
    questions = math.fsum(read_answers(base, "greedy", "evaluate/episodes"))
    return Ratio(value=ours / (theirs or 1 / questions), lower_bound=theirs == 0)


def read_answers(runs: Runs, decoding: str, name: str) -> list[float]:
    """One result of a row's evaluations, seed by seed."""
    found = []
    for run in runs:
        answers = run[decoding]
        assert isinstance(answers, Mapping)
        value = answers[name]
        assert isinstance(value, int | float), f"{name} is {value}"
        found.append(float(value))
    return found


def _over_training(runs: Runs) -> list[float]:
    return [statistics.fmean(read_column(run, "train", "rollout/success")) for run in runs]


def _difference(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    return estimate_mean([one - other for one, other in zip(ours, others, strict=True)])
