"""`turnwise bench multihop`: Agent-R1's table. What does reinforcement learning of tool calls add, and what the masks?

Invariant: within a seed all methods start from one cold start. Every row gets the same questions with the same
decodings, in a job of its own after its training, which keeps the trajectories and who was right.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.benchmark import JobResults, Scope, show_command
from benchmarks.harness.evaluation import DECODINGS, evaluate_section, leave_to_evaluation, read_config
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import NewPage, Publication, Report
from benchmarks.harness.table import TableBenchmark, name_model
from benchmarks.harness.training import training_job
from benchmarks.multihop import real_report
from benchmarks.multihop import report as multihop_report
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS, SFT, Baseline
from benchmarks.multihop.variant import Variant, choose_variant
from turnwise.config import Config
from turnwise.training.build import Components, assemble
from turnwise.types import Json

FIRST_SEED = 20
"""The recipes were tuned on seeds 0 to 4, and the cold start looked at on 12."""


def plan(scope: Scope) -> list[Job]:
    """The longest first: SFT of the cold starts, which the methods wait for, and of baselines; then row by row."""
    variant = choose_variant(scope)
    variant.check()
    baselines = (*BASELINES, *variant.beside)
    tuned = {
        (row.key, seed): training_job(f"sft/{row.key}/seed-{seed}", _baseline_config(variant, row, seed))
        for row in sorted(baselines, key=lambda row: row.key != SFT)
        for seed in BENCHMARK.seeds_of(scope)
        if row.sft and (row.key == SFT or row.play != "agent")
    }
    jobs = list(tuned.values())
    for seed in BENCHMARK.seeds_of(scope):
        for row in (*METHODS, *ABLATIONS):
            config = variant.method_config(row, seed)
            trained = training_job(f"training/{row.key}/seed-{seed}", config, after=tuned[SFT, seed])
            jobs += [trained, _evaluation(variant, row.key, config, after=trained)]
        for baseline in baselines:
            config = _baseline_config(variant, baseline, seed)
            cold = SFT if baseline.play == "agent" else baseline.key
            after = tuned[cold, seed] if baseline.sft else None
            jobs.append(_evaluation(variant, baseline.key, config, samples=baseline.samples, after=after))
    return jobs


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the rows, with their settings."""
    variant = choose_variant(scope)
    base = variant.config("grpo", FIRST_SEED)
    settings = {
        "seeds": ", ".join(map(str, BENCHMARK.seeds_of(scope))),
        "model": name_model(base.model.name),
        "evaluation": f"{variant.questions} questions of {base.evaluate.split} from place {variant.first} on",
        "passages": f"naive RAG reads {variant.passages}",
    }
    if variant.recipe:
        rows = (*METHODS, *ABLATIONS)
        planned = {row.key: variant.method_config(row, FIRST_SEED).steps for row in rows}
        made = real_report.report(BENCHMARK.seeds_of(scope), results, planned, page=variant.page)
        command = show_command(BENCHMARK, scope)
        keys = [row.key for row in (*BASELINES, *variant.beside, *rows)]
        settings |= {f"command/{key}": f"{command} --rows {key}" for key in keys}
        settings |= {f"settings/{row.key}": ", ".join(variant.settings(row)) for row in rows}
    else:
        made = multihop_report.report(BENCHMARK.seeds_of(scope), results)
        settings |= {f"recipe/{name}": path for name, path in variant.recipes.items()}
        settings |= {f"settings/{row.key}": ", ".join(row.overrides) for row in ABLATIONS}
    return replace(made, about=settings | dict(made.about))


def evaluate_row(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job that evaluates a row: `{"greedy": {"evaluate/success": .99, ..., "answers": [1.0, ...]}, ...}`.

    It evaluates the final model of the job before it, or where there is none, the config's own.
    """
    first = settings["first"]
    assert isinstance(first, int)
    config = read_config(settings, folders)
    return asyncio.run(_evaluate(config, assemble(config), first, folders.own))


async def _evaluate(config: Config, parts: Components, first: int, folder: Path) -> dict[str, Json]:
    tasks = parts.env.tasks(config.evaluate.split)[first : first + config.evaluate.tasks]
    result: dict[str, Json] = {}
    for name, temperature in DECODINGS.items():
        if config.evaluate.samples_per_task > 1 and not temperature:
            continue  # they would be alike
        result[name] = await evaluate_section(
            config, parts, parts.env, tasks, folder, name=name, temperature=temperature
        )
    return result


def _evaluation(variant: Variant, key: str, config: Config, *, samples: int = 1, after: Job | None) -> Job:
    # The job before it trained the model.
    config = leave_to_evaluation(config, tasks=variant.questions, samples=samples)
    settings: dict[str, Json] = {"config": config.model_dump(mode="json"), "first": variant.first}
    name = f"evaluation/{key}/seed-{config.seed}"
    return Job(name=name, work=f"{__name__}:evaluate_row", settings=settings, after=after)


def _baseline_config(variant: Variant, row: Baseline, seed: int) -> Config:
    config = variant.config("grpo", seed, "steps=0")
    return config.model_copy(update={"env": variant.baseline_env(row.play, config.env)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MultihopBenchmark(TableBenchmark):
    """Its variants have results and pages of their own; with a recipe, rows may be missing."""

    def folder_name(self, scope: Scope) -> str:
        return choose_variant(scope).name

    def publication(self, scope: Scope, root: Path) -> Publication:
        variant = choose_variant(scope)
        return NewPage(name=variant.page, root=root, template=variant.template, results_name=variant.name)


BENCHMARK = MultihopBenchmark(
    name="multihop",
    seeds=3,
    quick_seeds=3,
    first_seed=FIRST_SEED,
    plan=plan,
    report=report,
    publishes_quick=True,
    takes=frozenset({"recipe", "model", "data"}),
)
