"""Estimates over tasks, from the evaluations and the runs of one row of a table, of which some seeds may be missing.

Invariant: an interval is over tasks, which are the same for all rows: a task's episodes of several seeds are averaged
first. A difference between rows is taken within a task and a seed, and only over those that both have.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.jobs import JobResult
from benchmarks.harness.results import Estimate, estimate_mean
from turnwise.evaluation import clustered_interval, wilson_interval
from turnwise.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResults:
    """What there is of one row, by seed: `RowResults(evaluated={20: {...}}, trained={20: {...}, 21: {...}})`."""

    evaluated: Mapping[int, JobResult]
    trained: Mapping[int, JobResult]
    """Its own training or SFT, which may be unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """One row less another, task by task."""

    difference: Estimate
    won: int
    """Episodes, of all seeds, in which this row succeeded and the other did not."""
    lost: int

    def flat(self, name: str) -> dict[str, float]:
        return {**self.difference.flat(name), f"{name}/won": float(self.won), f"{name}/lost": float(self.lost)}


def gather(key: str, results: JobResults, seeds: Sequence[int]) -> RowResults:
    """What the jobs `evaluation/KEY/seed-N`, `training/KEY/seed-N` and `sft/KEY/seed-N` have to show so far."""
    kinds = {kind: {seed: f"{kind}/{key}/seed-{seed}" for seed in seeds} for kind in ("evaluation", "training", "sft")}
    found = {
        kind: {seed: results[name] for seed, name in names.items() if name in results} for kind, names in kinds.items()
    }
    return RowResults(evaluated=found["evaluation"], trained=found["training"] or found["sft"])


def read_right(result: JobResult, section: str) -> list[float | None]:
    """The share of each task's episodes that succeeded; None for one that infrastructure ended."""
    answers = _section(result, section)["answers"]
    assert isinstance(answers, list)
    return [float(share) if isinstance(share, int | float) else None for share in answers]


def estimate_right(row: RowResults, section: str) -> Estimate:
    """Success with its 95% interval: Wilson's with one seed, else clustered by task."""
    right = [read_right(result, section) for result in row.evaluated.values()]
    by_task = [[share for share in shares if share is not None] for shares in zip(*right, strict=True)]
    answered = [shares for shares in by_task if shares]
    mean = statistics.fmean(statistics.fmean(shares) for shares in answered)
    if len(right) == 1:
        low, high = wilson_interval(round(mean * len(answered)), len(answered))
    else:
        low, high = clustered_interval([round(sum(shares)) for shares in answered], [len(one) for one in answered])
    return Estimate(mean=mean, low=low, high=high, seeds=len(right))


def estimate_solved(row: RowResults) -> Estimate:
    """The share of tasks that any of a task's samples solved, which is pass@k for k samples."""
    solved = {
        seed: {
            "sampled": {
                "answers": [share if share is None else float(share > 0) for share in read_right(one, "sampled")]
            }
        }
        for seed, one in row.evaluated.items()
    }
    return estimate_right(RowResults(evaluated=solved, trained={}), "sampled")


def compare(row: RowResults, other: RowResults, section: str = "greedy") -> Paired | None:
    """The difference of success over the seeds that both have; its interval is Student's over tasks."""
    seeds = [seed for seed in row.evaluated if seed in other.evaluated]
    if not seeds:
        return None
    differences: dict[int, list[float]] = {}
    for seed in seeds:
        ours, theirs = (read_right(one.evaluated[seed], section) for one in (row, other))
        for task, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            if mine is not None and its is not None:
                differences.setdefault(task, []).append(mine - its)
    single = [value for values in differences.values() for value in values]
    return Paired(
        difference=_estimate_difference([statistics.fmean(values) for values in differences.values()]),
        won=sum(value > 0 for value in single),
        lost=sum(value < 0 for value in single),
    )


def _estimate_difference(by_task: Sequence[float]) -> Estimate:
    """Where all tasks differ alike, as where none does, other tasks may not: as many as Wilson's interval leaves open,
    by anything from -1 to 1. None of 40 is 0 ± .088."""
    found = estimate_mean(by_task)
    if found.low < found.high or found.seeds < 2:
        return found
    others = wilson_interval(0, found.seeds)[1]
    low, high = found.mean - others * (1 + found.mean), found.mean + others * (1 - found.mean)
    return replace(found, low=low, high=high)


def read_metric(row: RowResults, section: str, name: str) -> float:
    """The mean over seeds of one of an evaluation's metrics."""
    return statistics.fmean(_number(_section(result, section)[name]) for result in row.evaluated.values())


def count_steps(row: RowResults, stage: str) -> int:
    """The last step, of training or SFT, of the seed that came furthest."""
    return max((_last_step(result, stage) for result in row.trained.values()), default=0)


def sum_effort(row: RowResults) -> dict[str, float]:
    """What a run took: episodes, optimizer steps, tokens and seconds, on average over the seeds that came furthest."""
    furthest = {stage: count_steps(row, stage) for stage in ("sft", "train")}
    sums = [
        {
            "episodes": _total(result, "rollout/episodes", "train"),
            "updates": _total(result, "policy/steps_taken", "train"),
            "sampled_tokens": _total(result, "ledger/sampled_tokens", "train"),
            "trained_tokens": _total(result, "sft/tokens", "sft") + _total(result, "batch/tokens", "train"),
            "seconds": _total(result, "ledger/wall_seconds", "sft", "train", "evaluate"),
        }
        for result in row.trained.values()
        if all(_last_step(result, stage) == last for stage, last in furthest.items())
    ]
    return {name: statistics.fmean(one[name] for one in sums) for name in sums[0]} if sums else {}


def read_values(result: JobResult, stage: str, name: str) -> list[float]:
    """One metric of a run, record by record; NaN where a record has none, and empty where no record has it."""
    column = _section(result, stage).get(name, [])
    assert isinstance(column, list)
    return [_number(value) for value in column]


def average_steps(row: RowResults, stage: str, name: str) -> dict[int, Estimate]:
    """A metric by step, over the seeds that came so far and have it; intervals here are over seeds."""
    found: dict[int, list[float]] = {}
    for result in row.trained.values():
        steps, values = read_values(result, stage, "step"), read_values(result, stage, name)
        for step, value in zip(steps, values, strict=True) if values else ():
            if math.isfinite(value):
                found.setdefault(int(step), []).append(value)
    return {step: estimate_mean(values) for step, values in sorted(found.items())}


def compare_training(row: RowResults, other: RowResults) -> tuple[float, float] | None:
    """Mean success of the episodes sampled in training, and its difference, over the seeds and steps that both have."""
    seeds = [seed for seed in row.trained if seed in other.trained]
    ours, theirs = (
        average_steps(replace(one, trained={seed: one.trained[seed] for seed in seeds}), "train", "rollout/success")
        for one in (row, other)
    )
    steps = [step for step in ours if step in theirs]
    if not steps:
        return None
    mine, its = (statistics.fmean(curve[step].mean for step in steps) for curve in (ours, theirs))
    return mine, mine - its


def _last_step(result: JobResult, stage: str) -> int:
    return max(map(int, read_values(result, stage, "step")), default=0)


def _section(result: JobResult, name: str) -> Mapping[str, Json]:
    section = result.get(name, {})
    assert isinstance(section, Mapping)
    return section


def _total(result: JobResult, name: str, *stages: str) -> float:
    values: Sequence[float] = [value for stage in stages for value in read_values(result, stage, name)]
    return math.fsum(value for value in values if math.isfinite(value))


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
