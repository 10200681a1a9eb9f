"""`turnwise bench multihop`: Agent-R1's table. What does reinforcement learning of tool calls add, and what the masks?

Invariant: within a seed all methods start from one cold start. Every row gets the same questions with the same
decodings, in a job of its own after its training, which keeps the trajectories and who was right.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.harness.benchmark import Benchmark, JobResults, Scope, show_command
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import Publication, Report
from benchmarks.harness.training import read_unfinished, training_job
from benchmarks.multihop import real_report
from benchmarks.multihop import report as multihop_report
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS, SFT, Baseline
from benchmarks.multihop.variant import Pages, Variant, choose_variant
from turnwise.config import Config, check_config, load_run_config
from turnwise.errors import ConfigError
from turnwise.evaluation import evaluate
from turnwise.runs import write_trajectories
from turnwise.seeds import derive_seed
from turnwise.settings import parse_settings
from turnwise.spelling import suggest
from turnwise.training.build import Components, assemble
from turnwise.types import Group, Json, StopReason

FIRST_SEED = 20
"""The recipes were tuned on seeds 0 to 4, and the cold start looked at on 12."""
DECODINGS: Mapping[str, float] = {"greedy": 0.0, "sampled": 1.0}
"""By temperature. After a cold start on mostly lazy demonstrations, the likeliest strategy is the lazy one, so greedy
episodes show nothing of the others."""


def plan(scope: Scope) -> list[Job]:
    """The longest first: SFT of the cold starts, which the methods wait for, and of baselines; then row by row."""
    variant = choose_variant(scope)
    variant.check()
    baselines = (*BASELINES, *variant.ceilings)
    tuned = {
        (row.key, seed): training_job(f"sft/{row.key}/seed-{seed}", _baseline_config(variant, row, seed))
        for row in sorted(baselines, key=lambda row: row.key != SFT)
        for seed in seeds_of(scope)
        if row.sft and (row.key == SFT or row.play != "agent")
    }
    jobs = list(tuned.values())
    for seed in seeds_of(scope):
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
        "seeds": ", ".join(map(str, seeds_of(scope))),
        "model": _name_model(base.model.name),
        "evaluation": f"{variant.questions} questions of {base.evaluate.split} from place {variant.first} on",
        "passages": f"naive RAG reads {variant.passages}",
    }
    if variant.recipe:
        rows = (*METHODS, *ABLATIONS)
        planned = {row.key: variant.method_config(row, FIRST_SEED).steps for row in rows}
        made = real_report.report(seeds_of(scope), results, planned, page=variant.page)
        command = show_command(BENCHMARK, scope)
        keys = [row.key for row in (*BASELINES, *variant.ceilings, *rows)]
        settings |= {f"command/{key}": f"{command} --rows {key}" for key in keys}
        settings |= {f"settings/{row.key}": ", ".join(variant.settings(row)) for row in rows}
    else:
        made = multihop_report.report(seeds_of(scope), results)
        settings |= {f"recipe/{name}": path for name, path in variant.recipes.items()}
        settings |= {f"settings/{row.key}": ", ".join(row.overrides) for row in ABLATIONS}
    return replace(made, about=settings | dict(made.about))


def _name_model(name: str) -> str:
    """A hub's id as it is; of a folder or file of the user's, its own name alone."""
    path = Path(name).expanduser()
    return path.name if path.exists() else name


def seeds_of(scope: Scope) -> range:
    return range(FIRST_SEED, FIRST_SEED + scope.seeds)


def evaluate_row(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job that evaluates a row: `{"greedy": {"evaluate/success": .99, ..., "answers": [1.0, ...]}, ...}`.

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
    samples = config.evaluate.samples_per_task
    result: dict[str, Json] = {}
    for name, temperature in DECODINGS.items():
        if samples > 1 and not temperature:
            continue  # they would be alike
        decoding = config.evaluate.model_copy(update={"temperature": temperature})
        seed = derive_seed(config.seed, "evaluate", name)
        found = await evaluate(
            parts.policy(decoding),
            parts.env,
            tasks,
            limits=config.rollout,
            samples_per_task=samples,
            seed=seed,
            ledger=parts.ledger,
        )
        write_trajectories(folder / f"{name}.parquet", 0, found.groups, None, parts.render.decode)
        result[name] = {**found.metrics(), "answers": [_share_right(group) for group in found.groups]}
    return result


def _share_right(group: Group) -> float | None:
    """The share of a question's episodes that answered it; None where infrastructure ended them all."""
    scored = [episode.success for episode in group.trajectories if episode.stop is not StopReason.ENV_FAILED]
    return sum(scored) / len(scored) if scored else None


def _evaluation(variant: Variant, key: str, config: Config, *, samples: int = 1, after: Job | None) -> Job:
    asked = config.evaluate.model_copy(update={"tasks": variant.questions, "every": 0, "samples_per_task": samples})
    # The job before it trained the model.
    config = config.model_copy(update={"evaluate": asked, "steps": 0, "sft": None})
    settings: dict[str, Json] = {"config": config.model_dump(mode="json"), "first": variant.first}
    name = f"evaluation/{key}/seed-{config.seed}"
    return Job(name=name, work=f"{__name__}:evaluate_row", settings=settings, after=after)


def _baseline_config(variant: Variant, row: Baseline, seed: int) -> Config:
    config = variant.config("grpo", seed, "steps=0")
    return config.model_copy(update={"env": variant.baseline_env(row.play, config.env)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MultihopBenchmark(Benchmark):
    """Its variants have results and pages of their own; with a recipe, rows may be missing."""

    def folder_name(self, scope: Scope) -> str:
        return choose_variant(scope).name

    def default_processes(self, scope: Scope) -> int:
        """One on a GPU, whose memory has to hold all of them."""
        return 1 if torch.cuda.is_available() and not scope.quick else Benchmark.default_processes(self, scope)

    def choose(self, scope: Scope, jobs: Sequence[Job]) -> Sequence[Job]:
        """The evaluations of the rows, each of which comes after the row's training; all of a seed first."""
        evaluations = {job.name: job for job in jobs if job.name.startswith("evaluation/")}
        known = list(dict.fromkeys(name.split("/")[1] for name in evaluations))
        for key in scope.rows:
            if key not in known:
                raise ConfigError(f"--rows: there is no '{key}'{suggest(key, known)}; the rows are {', '.join(known)}")
        chosen = [evaluations[f"evaluation/{key}/seed-{seed}"] for seed in seeds_of(scope) for key in scope.rows]
        return chosen or jobs

    def publishes_unfinished(self, scope: Scope) -> bool:
        return not scope.quick

    def read_unfinished(self, job: Job, root: Path) -> JobResult | None:
        return read_unfinished(job, root)

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
    takes=frozenset({"recipe", "model", "data"}),
    takes_rows=True,
)
