"""Runs that are meant to stay well, so that an alarm in them is false unless they end trapped.

Invariant: each begins from a cold start that other runs of the benchmark begin from too, is watched by the same
monitor, and goes on for longer than a fall takes to be seen.
"""

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.games.curve import Course, count_false_alarms
from benchmarks.games.shaping import cold_start_name, shaping_config
from benchmarks.games.trap import courses_of, false_alarm_table, flatten_shares
from benchmarks.harness.benchmark import Results
from benchmarks.harness.jobs import Job
from benchmarks.harness.training import training_job
from turnwise.config import load_config

STEPS = 60
ESTIMATORS = {"dr-grpo": "dr-grpo", "reinforce-pp": "reinforce++-baseline"}
"""On the bandit, by estimators that do not divide by the spread of a group, as they are called in figures."""
LAKE = "frozen_lake"
"""A full run watches the recipe of the shaping tables too, for longer than they train by it."""


def plan_bandit(recipe: str, seed: int, *, cold: Job) -> list[Job]:
    """The recipe of the trap by estimators that it has no hold on."""
    plain = (f"seed={seed}", f"steps={STEPS}", "evaluate.tasks=1", "stability.mode=monitor")
    configs = {
        name: load_config(recipe, [*plain, f"credit.estimator={estimator}"]) for name, estimator in ESTIMATORS.items()
    }
    return [training_job(_job_name(name, seed), config, after=cold) for name, config in configs.items()]


def plan_lake(seed: int, *, shaping: Iterable[Job]) -> Job:
    """The lake for longer, from the cold start of its tables."""
    config = shaping_config(LAKE, seed, f"steps={STEPS}", "evaluate.tasks=1", quick=False)
    wanted = cold_start_name(LAKE, config, seed)
    return training_job(_job_name(LAKE, seed), config, after=next(job for job in shaping if job.name == wanted))


def read_healthy(results: Results) -> dict[str, list[Course]]:
    """The courses of these runs by name, of those that were made."""
    names = {name: f"healthy/{name}/" for name in (*ESTIMATORS, LAKE)}
    found = {name: [run for job, run in results.items() if job.startswith(start)] for name, start in names.items()}
    return {name: courses_of(runs) for name, runs in found.items() if runs}


def report_false_alarms(courses: Mapping[str, Sequence[Course]]) -> tuple[str, dict[str, float]]:
    """How often the monitor cried wolf, by kind of run and in all: as a table and as figures."""
    everyone = [course for each in courses.values() for course in each]
    found = {name: count_false_alarms(each) for name, each in {**courses, "all": everyone}.items()}
    figures: dict[str, float] = {}
    for name, one in found.items():
        figures |= flatten_shares(f"healthy/{name}", {"false_alarms": (one.alarmed, one.healthy)})
    return false_alarm_table(found), figures


def _job_name(name: str, seed: int) -> str:
    return f"healthy/{name}/seed-{seed}"
