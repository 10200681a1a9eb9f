"""Runs that should stay healthy, so that an alarm in them is false unless they end trapped.

Invariant: each starts from a cold start that other runs of the benchmark share, has the same monitor, and lasts longer
than a fall takes.
"""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.games.curve import Curve, count_false_alarms
from benchmarks.games.shaping import cold_start_name, shaping_config
from benchmarks.games.trap import false_alarm_table, flatten_shares, read_curves
from benchmarks.harness.benchmark import JobResults
from benchmarks.harness.jobs import Job
from benchmarks.harness.training import training_job
from turnwise.config import load_config

STEPS = 60
ESTIMATORS = {"dr-grpo": "dr-grpo", "reinforce-pp": "reinforce++-baseline"}
"""On the bandit, estimators that do not divide by a group's reward std, by their names in results."""
LAKE = "frozen_lake"
"""A full run also monitors the recipe of the shaping tables, for more steps than theirs."""


def plan_bandit(recipe: str, seed: int, *, cold: Job) -> list[Job]:
    """The trap's recipe with estimators that do not fall into it."""
    plain = (f"seed={seed}", f"steps={STEPS}", "evaluate.tasks=1", "stability.mode=monitor")
    configs = {
        name: load_config(recipe, [*plain, f"credit.estimator={estimator}"]) for name, estimator in ESTIMATORS.items()
    }
    return [training_job(_job_name(name, seed), config, after=cold) for name, config in configs.items()]


def plan_lake(seed: int, *, shaping: Iterable[Job]) -> Job:
    """FrozenLake for more steps, from the cold start of its tables."""
    config = shaping_config(LAKE, seed, f"steps={STEPS}", "evaluate.tasks=1", quick=False)
    wanted = cold_start_name(LAKE, config, seed)
    return training_job(_job_name(LAKE, seed), config, after=next(job for job in shaping if job.name == wanted))


def read_healthy(results: JobResults) -> dict[str, list[Curve]]:
    """The curves of these runs by name, of those that were made."""
    names = {name: f"healthy/{name}/" for name in (*ESTIMATORS, LAKE)}
    found = {name: [run for job, run in results.items() if job.startswith(start)] for name, start in names.items()}
    return {name: read_curves(runs) for name, runs in found.items() if runs}


def report_false_alarms(curves: Mapping[str, Sequence[Curve]]) -> tuple[str, dict[str, float]]:
    """False alarms by kind of run and in all: as a table and as results."""
    together = [curve for each in curves.values() for curve in each]
    found = {name: count_false_alarms(each) for name, each in {**curves, "all": together}.items()}
    published: dict[str, float] = {}
    for name, one in found.items():
        published |= flatten_shares(f"healthy/{name}", {"false_alarms": (one.alarmed, one.healthy)})
    return false_alarm_table(found), published


def _job_name(name: str, seed: int) -> str:
    return f"healthy/{name}/seed-{seed}"
