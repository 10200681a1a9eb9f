"""`turnwise bench multihop`: Agent-R1's table. What does reinforcement learning of tool calls add, and what the masks?

Invariant: within a seed all methods begin from one cold start. Every row is asked the same questions by the same
decodings, in a job of its own after its training, and leaves its trajectories there.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.benchmark import Benchmark, Results, Scope
from benchmarks.harness.jobs import Figures, Job, Place
from benchmarks.harness.report import Publication, Report
from benchmarks.harness.training import training_job
from benchmarks.multihop import report as multihop_report
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS, SFT, Baseline, Method
from benchmarks.multihop.variant import Edition, Pages, choose_edition
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
episodes show nothing of what was learnt beside it."""


def plan(scope: Scope) -> list[Job]:
    """The longest first: cold starts, which the methods wait for, and imitation; each evaluation when it can be."""
    edition = choose_edition(scope)
    edition.check()
    imitated = {
        (row.key, seed): training_job(f"imitation/{row.key}/seed-{seed}", _baseline_config(edition, row, seed))
        for row in sorted(BASELINES, key=lambda row: row.key != SFT)
        for seed in seeds_of(scope)
        if row.imitates
    }
    jobs = list(imitated.values())
    for seed in seeds_of(scope):
        for row in (*METHODS, *ABLATIONS):
            config = _method_config(edition, row, seed)
            trained = training_job(f"training/{row.key}/seed-{seed}", config, after=imitated[SFT, seed])
            jobs += [trained, _evaluation(edition, row.key, config, after=trained)]
        for baseline in BASELINES:
            config = _baseline_config(edition, baseline, seed)
            jobs.append(_evaluation(edition, baseline.key, config, after=imitated.get((baseline.key, seed))))
    return jobs


def report(scope: Scope, results: Results) -> Report:
    """What the rows came to, and what they were told to do."""
    edition = choose_edition(scope)
    made = multihop_report.report(seeds_of(scope), results, kinds=not scope.quick)
    base = edition.config("grpo", FIRST_SEED)
    settings = {
        "seeds": ", ".join(map(str, seeds_of(scope))),
        "model": base.model.name,
        "evaluation": f"{edition.questions} questions of {base.evaluate.split} from place {edition.first} on",
        "passages": f"naive RAG reads {edition.passages}",
    }
    settings |= {f"recipe/{name}": path for name, path in edition.recipes.items()}
    settings |= {f"settings/{row.key}": ", ".join(row.overrides) for row in ABLATIONS}
    return replace(made, about=settings | dict(made.about))


def seeds_of(scope: Scope) -> range:
    return range(FIRST_SEED, FIRST_SEED + scope.seeds)


def ask_questions(settings: Mapping[str, Json], place: Place) -> Figures:
    """The job that evaluates a row: `{"greedy": {"evaluate/success": .99, ...}, "sampled": {...}}`.

    It asks the model that the job before it ended with, or where there is none, the config's own as it comes.
    """
    data, first = settings["config"], settings["first"]
    assert isinstance(data, Mapping)
    assert isinstance(first, int)
    config = check_config(parse_settings(Config, data, source=place.folder.name))
    if place.before is not None:
        config = config.model_copy(update={"model": load_run_config(place.before / "run").model})
    return asyncio.run(_ask(config, assemble(config), first, place.folder))


async def _ask(config: Config, parts: Components, first: int, folder: Path) -> dict[str, Json]:
    tasks = parts.env.tasks(config.evaluate.split)[first : first + config.evaluate.tasks]
    figures: dict[str, Json] = {}
    for name, temperature in DECODINGS.items():
        decoding = config.evaluate.model_copy(update={"temperature": temperature})
        seed = derive_seed(config.seed, "evaluate", name)
        found = await evaluate(
            parts.policy(decoding), parts.env, tasks, limits=config.rollout, seed=seed, ledger=parts.ledger
        )
        write_trajectories(folder / f"{name}.parquet", 0, found.groups, None, parts.render.decode)
        figures[name] = dict(found.metrics())
    return figures


def _evaluation(edition: Edition, key: str, config: Config, *, after: Job | None) -> Job:
    asked = config.evaluate.model_copy(update={"tasks": edition.questions})
    # How the model was made is the business of the job before.
    config = config.model_copy(update={"evaluate": asked, "steps": 0, "sft": None})
    settings: dict[str, Json] = {"config": config.model_dump(mode="json"), "first": edition.first}
    name = f"evaluation/{key}/seed-{config.seed}"
    return Job(name=name, work=f"{__name__}:ask_questions", settings=settings, after=after)


def _baseline_config(edition: Edition, row: Baseline, seed: int) -> Config:
    config = edition.config("grpo", seed, "steps=0")
    return config.model_copy(update={"env": edition.baseline_env(row.play, config.env)})


def _method_config(edition: Edition, row: Method, seed: int) -> Config:
    return edition.config(row.recipe, seed, *row.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultihopBenchmark(Benchmark):
    """One whose editions have figures and pages of their own."""

    def edition(self, scope: Scope) -> str:
        return choose_edition(scope).name

    def publication(self, scope: Scope, root: Path) -> Publication:
        edition = choose_edition(scope)
        return Pages(name=edition.page, root=root, edition=edition)


BENCHMARK = MultihopBenchmark(
    name="multihop",
    seeds=3,
    quick_seeds=3,
    plan=plan,
    report=report,
    publishes_quick=True,
    takes=frozenset({"model", "data"}),
)
