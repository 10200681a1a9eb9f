"""`turnwise bench ablation`: what single settings of a recipe are worth, with seeds, on tasks split off training.

Invariant: within a seed all rows start from one cold start, but those whose change acts on it. Every row plays the same
tasks, in a job of its own after its training.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.ablation import report as ablation_report
from benchmarks.ablation.comparison import Comparison, choose_comparison
from benchmarks.ablation.rows import RECIPE, Row
from benchmarks.harness.benchmark import JobResults, Scope, show_command
from benchmarks.harness.evaluation import DECODINGS, evaluate_section, read_config
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import NewPage, Publication, Report
from benchmarks.harness.table import TableBenchmark, name_model
from benchmarks.harness.training import training_job
from turnwise.config import Config
from turnwise.training.build import assemble
from turnwise.types import Json

FIRST_SEED = 80
"""`bench starpo` begins at 60; the monitor's rules were chosen on seeds 1 to 44 and 100 to 119."""


def plan(scope: Scope) -> list[Job]:
    """The recipe's cold starts first, which most rows wait for; then seed by seed and row by row."""
    comparison = choose_comparison(scope)
    comparison.check()
    cold = {
        (row.start, seed): training_job(f"sft/{row.start}/seed-{seed}", comparison.cold_config(row, seed))
        for row in comparison.rows
        for seed in BENCHMARK.seeds_of(scope)
    }
    jobs = [cold[RECIPE.start, seed] for seed in BENCHMARK.seeds_of(scope)]
    for seed in BENCHMARK.seeds_of(scope):
        for row in comparison.rows:
            last = cold[row.start, seed]
            if row.trained:
                last = training_job(f"training/{row.key}/seed-{seed}", comparison.trained_config(row, seed), after=last)
            jobs += [last, _evaluation(comparison, row, seed, after=last)]
    return jobs


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the rows, with their settings."""
    comparison = choose_comparison(scope)
    config = comparison.evaluated_config(RECIPE, FIRST_SEED)
    seeds, rows = BENCHMARK.seeds_of(scope), comparison.rows
    planned = {row.key: comparison.trained_config(row, FIRST_SEED).steps for row in rows if row.trained}
    otherwise = [row.key for row in rows if comparison.plays_otherwise(row)]
    made = ablation_report.report(rows, seeds, results, planned, otherwise=otherwise, page=comparison.name)
    command = show_command(BENCHMARK, scope)
    settings = {
        "seeds": ", ".join(map(str, seeds)),
        "model": name_model(config.model.name),
        "evaluation": f"{config.evaluate.hold_out} tasks held out of training",
    }
    settings |= {f"command/{row.key}": f"{command} --rows {row.key}" for row in rows}
    settings |= {f"settings/{row.key}": row.change.shown for row in rows if row.change is not None}
    parts = {**made.parts, "evaluation": comparison.evaluation}
    return replace(made, parts=parts, about=settings | dict(made.about))


def evaluate_row(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job that evaluates a row: `{"greedy": {"evaluate/success": .99, ..., "answers": [1.0, ...]}, ...}`.

    It evaluates the final model of the job before it, in the recipe's settings; where a row's change acts on episodes,
    in its own as well: `own-greedy`.
    """
    result = _play(read_config(settings, folders), folders.own)
    if settings["own"] is not None:
        folder = folders.own / "own"
        folder.mkdir(exist_ok=True)
        own = _play(read_config({"config": settings["own"]}, folders), folder)
        result |= {ablation_report.name_own(name): section for name, section in own.items()}
    return result


def _play(config: Config, folder: Path) -> dict[str, Json]:
    """The tasks, greedy and sampled, by this config."""
    parts = assemble(config)

    async def play() -> dict[str, Json]:
        return {
            name: await evaluate_section(
                config, parts, parts.env, parts.test_tasks, folder, name=name, temperature=temperature
            )
            for name, temperature in DECODINGS.items()
        }

    return asyncio.run(play())


def _evaluation(comparison: Comparison, row: Row, seed: int, *, after: Job) -> Job:
    own = comparison.evaluated_config(row, seed) if comparison.plays_otherwise(row) else None
    settings: dict[str, Json] = {
        "config": comparison.evaluated_config(RECIPE, seed).model_dump(mode="json"),
        "own": own.model_dump(mode="json") if own is not None else None,
    }
    return Job(
        name=f"evaluation/{row.key}/seed-{seed}", work=f"{__name__}:evaluate_row", settings=settings, after=after
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationBenchmark(TableBenchmark):
    """Each recipe has results and a page of its own."""

    takes_changes: bool = True

    def folder_name(self, scope: Scope) -> str:
        return choose_comparison(scope).name

    def publication(self, scope: Scope, root: Path) -> Publication:
        comparison = choose_comparison(scope)
        name = comparison.name
        return NewPage(name=name, root=root, template=comparison.template, results_name=name)


BENCHMARK = AblationBenchmark(
    name="ablation",
    seeds=3,
    quick_seeds=3,
    first_seed=FIRST_SEED,
    plan=plan,
    report=report,
    takes=frozenset({"recipe", "model"}),
)
