"""`turnwise bench credit`: every estimator on worlds whose gradient is known, and in training on one real game.

Invariant: only the credit differs. In a world, all estimators judge the same episodes; in training, all start from one
cold start per seed, draw the same tasks, sample as many episodes and make as many updates.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace

from benchmarks.credit import report as credit_report
from benchmarks.credit.candidates import CANDIDATES, Candidate
from benchmarks.harness.benchmark import Benchmark, JobResults, Scope
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.harness.report import Report
from benchmarks.harness.training import training_job
from turnwise.config import Config, load_config
from turnwise.learner.settings import CriticSettings, OptimizerSettings
from turnwise.oracle import WORLDS, measure
from turnwise.types import Json

RECIPE = "credit-frozen-lake"
QUICK = ("steps=8", "evaluate.tasks=128", "evaluate.every=4")
LEARNERS: Mapping[str, tuple[str, ...]] = {
    "gae": ("credit.lam=0.95",),
    "turn-gae": ("credit.turn_lam=0.95",),
    "bilevel-gae": ("credit.lam=0.95", "credit.turn_lam=0.95"),
    "grpo": (),
    "dr-grpo": ("loss.aggregation=fixed", "loss.fixed_length={episode_tokens}"),
    "rloo": (),
    "reinforce++": (),
    "reinforce++-baseline": (),
    "reward-to-go": (),
    "gigpo": ("credit.turn_gamma=0.95",),
}
"""The settings of each estimator beside its name, as in its paper; the rest is the recipe's."""

CRITIC = CriticSettings(optimizer=OptimizerSettings(lr=1e-3))
"""Of the estimators that have one."""


def plan(scope: Scope) -> list[Job]:
    """The cold starts first, since training waits for them; the worlds fill the processes meanwhile."""
    seeds = range(scope.seeds)
    cold = {seed: _cold_start(scope, seed) for seed in seeds}
    worlds = [_moments(world, scope, seed) for seed in seeds for world in WORLDS]
    learning = [_learning(estimator, scope, seed, cold[seed]) for seed in seeds for estimator in LEARNERS]
    return [*cold.values(), *worlds, *learning]


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the jobs, with their settings."""
    made = credit_report.report(scope, results)
    config = _config(scope, 0)
    rollout = config.rollout
    settings = {
        "recipe": RECIPE,
        "settings/oracle": ", ".join(f"{name} {count}" for name, count in _sizes(scope).items()),
        "settings/training": f"steps {config.steps}, {rollout.groups_per_step} groups of {rollout.group_size}",
        "settings/evaluation": f"tasks {config.evaluate.tasks}, temperature {config.evaluate.temperature:g}",
    }
    settings |= {f"settings/{name}": ", ".join(_overrides(name, config)) for name in LEARNERS if LEARNERS[name]}
    return replace(made, about=settings | dict(made.about))


def measure_moments(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of one world and seed: `{"rloo": {"bias": .01, "variance": 19.3, "snr": .91, "cosine": 1.0}, ...}`."""
    world, candidates = settings["world"], settings["candidates"]
    assert isinstance(world, str)
    assert isinstance(candidates, Mapping)
    groups, group_size, samples, seed = (_whole(settings, name) for name in ("groups", "group_size", "samples", "seed"))
    result: dict[str, Json] = {}
    for name, plain in candidates.items():
        candidate = Candidate.read(name, plain)
        moments = measure(
            WORLDS[world],
            candidate.credit,
            groups=groups,
            group_size=group_size,
            samples=samples,
            seed=seed,
            critic=candidate.critic,
        )
        result[name] = asdict(moments)
    return result


def _cold_start(scope: Scope, seed: int) -> Job:
    config = _config(scope, seed, "steps=0", "evaluate.tasks=1")  # every learner evaluates the cold start anyway
    return training_job(f"cold-start/seed-{seed}", config)


def _learning(estimator: str, scope: Scope, seed: int, cold: Job) -> Job:
    config = _config(scope, seed, f"credit.estimator={estimator}", *_overrides(estimator, _config(scope, seed)))
    return training_job(f"learning/{estimator}/seed-{seed}", config, after=cold)


def _overrides(estimator: str, config: Config) -> list[str]:
    episode_tokens = config.rollout.max_turns * config.rollout.turn_tokens
    return [override.format(episode_tokens=episode_tokens) for override in LEARNERS[estimator]]


def _moments(world: str, scope: Scope, seed: int) -> Job:
    candidates = {candidate.name: candidate.plain() for candidate in CANDIDATES}
    settings: dict[str, Json] = {"world": world, "seed": seed, **_sizes(scope), "candidates": candidates}
    return Job(name=f"moments/{world}/seed-{seed}", work=f"{__name__}:measure_moments", settings=settings)


def _sizes(scope: Scope) -> dict[str, int]:
    return {"groups": 4, "group_size": 4, "samples": 200 if scope.quick else 4000}


def _config(scope: Scope, seed: int, *overrides: str) -> Config:
    config = load_config(RECIPE, [*(QUICK if scope.quick else ()), f"seed={seed}", *overrides])
    return config.model_copy(update={"learner": config.learner.model_copy(update={"critic": CRITIC})})


def _whole(settings: Mapping[str, Json], name: str) -> int:
    value = settings[name]
    assert isinstance(value, int)
    return value


BENCHMARK = Benchmark(name="credit", seeds=5, quick_seeds=2, plan=plan, report=report)
