"""`turnwise bench starpo`: RAGEN's comparison over a recipe of a game. Does StarPO-S keep a run from the Echo Trap?

Invariant: within a seed all trained rows start from one cold start. Every row plays the same tasks, in the game as
trained and in the changed ones, in a job of its own after its training.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.benchmark import JobResults, Scope, show_command
from benchmarks.harness.evaluation import DECODINGS, evaluate_section, read_config
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import NewPage, Publication, Report
from benchmarks.harness.table import TableBenchmark, name_model
from benchmarks.harness.training import training_job
from benchmarks.starpo import report as starpo_report
from benchmarks.starpo.changes import change_env
from benchmarks.starpo.comparison import Comparison, choose_comparison
from benchmarks.starpo.rows import COLD_START, ROWS, TRAINED, UNTRAINED
from turnwise.config import Config
from turnwise.envs import Env
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.training.build import Components, assemble
from turnwise.types import Json

FIRST_SEED = 60
"""The monitor's rules were chosen on seeds 1 to 44 and 100 to 119; `bench games` begins at 50."""


def plan(scope: Scope) -> list[Job]:
    """The cold starts first, which all others of their seed wait for; then seed by seed and row by row."""
    comparison = choose_comparison(scope)
    comparison.check()
    cold = {
        seed: training_job(f"sft/{COLD_START.key}/seed-{seed}", comparison.cold_config(seed))
        for seed in BENCHMARK.seeds_of(scope)
    }
    jobs = list(cold.values())
    for seed, start in cold.items():
        jobs.append(_evaluation(comparison, UNTRAINED.key, seed, after=None))
        jobs.append(_evaluation(comparison, COLD_START.key, seed, after=start))
        for row in TRAINED:
            trained = training_job(f"training/{row.key}/seed-{seed}", comparison.trained_config(row, seed), after=start)
            jobs += [trained, _evaluation(comparison, row.key, seed, after=trained)]
    return jobs


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the rows, with their settings."""
    comparison = choose_comparison(scope)
    config = comparison.evaluated_config(FIRST_SEED)
    planned = {row.key: comparison.trained_config(row, FIRST_SEED).steps for row in TRAINED}
    made = starpo_report.report(
        BENCHMARK.seeds_of(scope), results, planned, changes=comparison.changes, page=comparison.name
    )
    command = show_command(BENCHMARK, scope)
    settings = {
        "seeds": ", ".join(map(str, BENCHMARK.seeds_of(scope))),
        "model": name_model(config.model.name),
        "evaluation": f"{config.evaluate.tasks} tasks of {config.evaluate.split}",
    }
    settings |= {f"command/{row.key}": f"{command} --rows {row.key}" for row in ROWS}
    settings |= {f"settings/{row.key}": f"stability.mode={row.mode}" for row in TRAINED}
    return replace(made, about=settings | dict(made.about))


def evaluate_row(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job that evaluates a row: `{"greedy": {"evaluate/success": .99, ..., "answers": [1.0, ...]}, "8x8": ...}`.

    It evaluates the final model of the job before it, or where there is none, the config's own.
    """
    config = read_config(settings, folders)
    changes = settings["changes"]
    assert isinstance(changes, Mapping)
    assert isinstance(config.env, EnvSettings), "one of the games"
    envs = {key: make_env(change_env(config.env, args)) for key, args in changes.items() if isinstance(args, Mapping)}
    return asyncio.run(_evaluate(config, assemble(config), envs, folders.own))


async def _evaluate(config: Config, parts: Components, changed: Mapping[str, Env], folder: Path) -> dict[str, Json]:
    """The game as trained, greedy and sampled; then each changed game, greedy."""
    asked = [(name, temperature, parts.env) for name, temperature in DECODINGS.items()]
    asked += [(key, DECODINGS["greedy"], env) for key, env in changed.items()]
    return {
        name: await evaluate_section(
            config,
            parts,
            env,
            env.tasks(config.evaluate.split)[: config.evaluate.tasks],
            folder,
            name=name,
            temperature=temperature,
        )
        for name, temperature, env in asked
    }


def _evaluation(comparison: Comparison, key: str, seed: int, *, after: Job | None) -> Job:
    settings: dict[str, Json] = {
        "config": comparison.evaluated_config(seed).model_dump(mode="json"),
        "changes": {change.key: dict(change.args) for change in comparison.changes},
    }
    return Job(name=f"evaluation/{key}/seed-{seed}", work=f"{__name__}:evaluate_row", settings=settings, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarpoBenchmark(TableBenchmark):
    """Each recipe has results and a page of its own."""

    def folder_name(self, scope: Scope) -> str:
        return choose_comparison(scope).name

    def publication(self, scope: Scope, root: Path) -> Publication:
        comparison = choose_comparison(scope)
        name = comparison.name
        return NewPage(name=name, root=root, template=comparison.template, results_name=name)


BENCHMARK = StarpoBenchmark(
    name="starpo",
    seeds=3,
    quick_seeds=3,
    first_seed=FIRST_SEED,
    plan=plan,
    report=report,
    takes=frozenset({"recipe", "model"}),
)
