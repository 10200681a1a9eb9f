"""`turnwise bench multihop`: Agent-R1's table. What does reinforcement learning of tool calls add, and what the masks?

Invariant: within a seed all methods start from one cold start. Every row gets the same questions with the same
decodings, in a job of its own after its training, which keeps the trajectories.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.benchmark import Benchmark, JobResults, Scope
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import Publication, Report
from benchmarks.harness.training import training_job
from benchmarks.multihop import report as multihop_report
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS, SFT, Baseline, Method
from benchmarks.multihop.variant import Pages, Variant, choose_variant
from turnwise.config import Config, check_config, load_run_config
from turnwise.evaluation import evaluate
from turnwise.runs import write_trajectories
from turnwise.seeds import derive_seed
from turnwise.settings import parse_settings
from turnwise.training.build import Components, assemble
from turnwise.types import Json

FIRST_SEED = 20
"""The recipes were tuned on seeds 0 to 4, and the cold start looked at on 12."""
DECODINGS: Mapping[str, float] = {"greedy": 0.0, "sampled": 1.0}
"""By temperature. After a cold start on mostly lazy demonstrations, the likeliest strategy is the lazy one, so greedy
episodes show nothing of the others."""


def plan(scope: Scope) -> list[Job]:
    """The longest first: SFT of the cold starts, which the methods wait for, and of baselines; then evaluations."""
    variant = choose_variant(scope)
    variant.check()
    tuned = {
        (row.key, seed): training_job(f"sft/{row.key}/seed-{seed}", _baseline_config(variant, row, seed))
        for row in sorted(BASELINES, key=lambda row: row.key != SFT)
        for seed in seeds_of(scope)
        if row.sft
    }
    jobs = list(tuned.values())
    for seed in seeds_of(scope):
        for row in (*METHODS, *ABLATIONS):
            config = _method_config(variant, row, seed)
            trained = training_job(f"training/{row.key}/seed-{seed}", config, after=tuned[SFT, seed])
            jobs += [trained, _evaluation(variant, row.key, config, after=trained)]
        for baseline in BASELINES:
            config = _baseline_config(variant, baseline, seed)
            jobs.append(_evaluation(variant, baseline.key, config, after=tuned.get((baseline.key, seed))))
    return jobs


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the rows, with their settings."""
    variant = choose_variant(scope)
    made = multihop_report.report(seeds_of(scope), results, kinds=not scope.quick)
    base = variant.config("grpo", FIRST_SEED)
    settings = {
        "seeds": ", ".join(map(str, seeds_of(scope))),
        "model": base.model.name,
        "evaluation": f"{variant.questions} questions of {base.evaluate.split} from place {variant.first} on",
        "passages": f"naive RAG reads {variant.passages}",
    }
    settings |= {f"recipe/{name}": path for name, path in variant.recipes.items()}
    settings |= {f"settings/{row.key}": ", ".join(row.overrides) for row in ABLATIONS}
    return replace(made, about=settings | dict(made.about))


def seeds_of(scope: Scope) -> range:
    return range(FIRST_SEED, FIRST_SEED + scope.seeds)


def evaluate_row(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job that evaluates a row: `{"greedy": {"evaluate/success": .99, ...}, "sampled": {...}}`.

    It evaluates the final model of the job before it, or where there is none, the config's own.
    """
    data, first = settings["config"], settings["first"]
    assert isinstance(data, Mapping)
    assert isinstance(first, int)
    config = check_config(parse_settings(Config, data, source=folders.own.name))
    if folders.before is not None:
        config = config.model_copy(update={"model": load_run_config(folders.before / "run").model})
    return asyncio.run(_evaluate(config, assemble(config), first, folders.own))


async def _evaluate(config: Config, parts: Components, first: int, folder: Path) -> dict[str, Json]:
    tasks = parts.env.tasks(config.evaluate.split)[first : first + config.evaluate.tasks]
    result: dict[str, Json] = {}
    for name, temperature in DECODINGS.items():
        decoding = config.evaluate.model_copy(update={"temperature": temperature})
        seed = derive_seed(config.seed, "evaluate", name)
        found = await evaluate(
            parts.policy(decoding), parts.env, tasks, limits=config.rollout, seed=seed, ledger=parts.ledger
        )
        write_trajectories(folder / f"{name}.parquet", 0, found.groups, None, parts.render.decode)
        result[name] = dict(found.metrics())
    return result


def _evaluation(variant: Variant, key: str, config: Config, *, after: Job | None) -> Job:
    asked = config.evaluate.model_copy(update={"tasks": variant.questions})
    # The job before it trained the model.
    config = config.model_copy(update={"evaluate": asked, "steps": 0, "sft": None})
    settings: dict[str, Json] = {"config": config.model_dump(mode="json"), "first": variant.first}
    name = f"evaluation/{key}/seed-{config.seed}"
    return Job(name=name, work=f"{__name__}:evaluate_row", settings=settings, after=after)


def _baseline_config(variant: Variant, row: Baseline, seed: int) -> Config:
    config = variant.config("grpo", seed, "steps=0")
    return config.model_copy(update={"env": variant.baseline_env(row.play, config.env)})


def _method_config(variant: Variant, row: Method, seed: int) -> Config:
    return variant.config(row.recipe, seed, *row.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultihopBenchmark(Benchmark):
    """Its variants have results and pages of their own."""

    def folder_name(self, scope: Scope) -> str:
        return choose_variant(scope).name

    def publication(self, scope: Scope, root: Path) -> Publication:
        variant = choose_variant(scope)
        return Pages(name=variant.page, root=root, variant=variant)


BENCHMARK = MultihopBenchmark(
    name="multihop",
    seeds=3,
    quick_seeds=3,
    plan=plan,
    report=report,
    publishes_quick=True,
    takes=frozenset({"model", "data"}),
)
