"""`turnwise bench masks`: PPO with and without the masks where an early choice decides, and how far credit reaches.

Invariant: only the masks differ. Within a seed all rows start from the same table, and signs mean the same ways.
"""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.harness.benchmark import Benchmark, JobResults, Scope
from benchmarks.harness.jobs import Job
from benchmarks.harness.report import Report
from benchmarks.masks import report as masks_report
from benchmarks.masks.reach import ACTION_TOKENS
from benchmarks.masks.table import EPISODES, LAM, LR, ROAD, SIGNS
from turnwise.types import Json

STEPS, QUICK_STEPS = 60, 10
ROWS: Mapping[str, Mapping[str, Json]] = {
    "both": {"advantage_mask": True, "action_mask": True},
    "no-advantage-mask": {"advantage_mask": False, "action_mask": True},
    "neither": {"advantage_mask": False, "action_mask": False},
}


def plan(scope: Scope) -> list[Job]:
    return [_job(row, seed, scope) for seed in range(scope.seeds) for row in ROWS]


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the rows, with their settings."""
    runs = {row: [results[f"{row}/seed-{seed}"] for seed in range(scope.seeds)] for row in ROWS}
    made = masks_report.report(runs, lam=LAM)
    settings = {
        "seeds": ", ".join(map(str, range(scope.seeds))),
        "settings/training": f"{_steps(scope)} updates of {len(SIGNS) * EPISODES} episodes, learning rate {LR:g}",
        "settings/world": f"a road of {ROAD} tokens, γ = 1, λ = {LAM:g}",
        "settings/reach": f"actions of {ACTION_TOKENS} tokens, a critic that is 0 everywhere",
    }
    return replace(made, about=settings | dict(made.about))


def _job(row: str, seed: int, scope: Scope) -> Job:
    settings: dict[str, Json] = {**ROWS[row], "seed": seed, "steps": _steps(scope)}
    return Job(name=f"{row}/seed-{seed}", work="benchmarks.masks.table:learn", settings=settings)


def _steps(scope: Scope) -> int:
    return QUICK_STEPS if scope.quick else STEPS


BENCHMARK = Benchmark(name="masks", seeds=5, quick_seeds=2, plan=plan, report=report)
