"""`turnwise bench games`: the Echo Trap and what notices it, on the bandit; and rollout shaping on the lake.

Invariant: within a seed the modes start from one cold start, sample as many episodes and make as many updates; the
seeds are none of those that the monitor's rules and thresholds were chosen on, which are 1 to 44 and 100 to 119.
"""

from collections.abc import Mapping

from benchmarks.games.health import plan_bandit, plan_lake, read_healthy, report_false_alarms
from benchmarks.games.shaping import ENVIRONMENTS, environments, plan_shaping, shaping_config
from benchmarks.games.shaping_report import Shaping
from benchmarks.games.trap import (
    BASE,
    alarm_table,
    count_effort,
    count_shares,
    describe_effort,
    draw_trap,
    flatten,
    flatten_shares,
    read_curves,
    summarise_mode,
    trap_table,
)
from benchmarks.harness.benchmark import Benchmark, JobResults, Scope
from benchmarks.harness.jobs import Job
from benchmarks.harness.report import Report
from benchmarks.harness.training import training_job
from turnwise.config import Config, load_config

RECIPE = "games-bandit"
MODES: Mapping[str, tuple[str, ...]] = {
    "vanilla": ("stability.mode=monitor",),
    "auto": ("stability.mode=auto",),
    "always": ("stability.mode=always",),
    "rloo": ("stability.mode=monitor", "credit.estimator=rloo"),
}
"""GRPO with the monitor alone; with StarPO-S enabled on an alarm; with StarPO-S throughout; and RLOO, which does not
divide by the std and does not fall into the trap: a healthy reference."""
HEALTHY = ("always", "rloo")
"""The modes that should stay healthy; `health` has more such runs."""
FIRST_SEED = 50
SHAPING_SEEDS = 5
QUICK_SHAPING_SEEDS = 3


def plan(scope: Scope) -> list[Job]:
    """The trap's runs first, which are the longest, each seed's after its cold start; then the tables' cells, and a
    full run's longer ones on the lake."""
    trap = [job for seed in trap_seeds(scope) for job in _plan_trap(seed)]
    shaping = [
        job
        for seed in shaping_seeds(scope)
        for environment in environments(quick=scope.quick)
        for job in plan_shaping(environment, seed, quick=scope.quick)
    ]
    lake = [] if scope.quick else [plan_lake(seed, shaping=shaping) for seed in shaping_seeds(scope)]
    return [*trap, *shaping, *lake]


def report(scope: Scope, results: JobResults) -> Report:
    """The results of the runs, with their settings."""
    runs = {mode: [results[f"trap/{mode}/seed-{seed}"] for seed in trap_seeds(scope)] for mode in MODES}
    curves = {mode: read_curves(each) for mode, each in runs.items()}
    summaries = {mode: summarise_mode(each, runs[BASE]) for mode, each in runs.items()}
    shares = {mode: count_shares(each) for mode, each in curves.items()}
    effort = {mode: count_effort(each) for mode, each in runs.items()}
    shaping = _shaping(scope, results)
    false_alarms, published = report_false_alarms({mode: curves[mode] for mode in HEALTHY} | read_healthy(results))
    published |= shaping.flatten()
    for mode in MODES:
        prefix = f"trap/{mode}"
        published |= flatten(prefix, summaries[mode]) | flatten_shares(prefix, shares[mode])
        published |= {f"{prefix}/{name}": total for name, total in effort[mode].items()}
    return Report(
        results=published,
        parts={
            "trap": trap_table(summaries, shares, effort),
            "trap-effort": describe_effort(effort),
            "alarm": alarm_table(summaries, shares),
            "false-alarms": false_alarms,
            **shaping.parts(),
        },
        pictures=[draw_trap(runs, summaries), shaping.picture()],
        about=_settings(scope, shaping),
    )


def trap_seeds(scope: Scope) -> range:
    return range(FIRST_SEED, FIRST_SEED + scope.seeds)


def shaping_seeds(scope: Scope) -> range:
    """Fewer than the trap's, since a table has many cells."""
    return range(FIRST_SEED, FIRST_SEED + min(scope.seeds, QUICK_SHAPING_SEEDS if scope.quick else SHAPING_SEEDS))


def _shaping(scope: Scope, results: JobResults) -> Shaping:
    seeds = shaping_seeds(scope)
    configs = {name: shaping_config(name, seeds[0], quick=scope.quick) for name in environments(quick=scope.quick)}
    return Shaping(results=results, configs=configs, seeds=seeds, quick=scope.quick)


def _settings(scope: Scope, shaping: Shaping) -> dict[str, str]:
    settings = {
        "recipe/trap": RECIPE,
        "settings/trap": _describe(_trap_config(BASE, FIRST_SEED)),
        "seeds/trap": ", ".join(map(str, trap_seeds(scope))),
        "seeds/shaping": ", ".join(map(str, shaping.seeds)),
    }
    settings |= {f"recipe/{name}": ENVIRONMENTS[name].recipe for name in shaping.configs}
    return settings | {f"settings/{name}": _describe(config) for name, config in shaping.configs.items()}


def _plan_trap(seed: int) -> list[Job]:
    cold_config = load_config(RECIPE, [f"seed={seed}", "steps=0", "evaluate.tasks=1"])
    cold = training_job(f"trap/cold-start/seed-{seed}", cold_config)
    runs = [training_job(f"trap/{mode}/seed-{seed}", _trap_config(mode, seed), after=cold) for mode in MODES]
    return [cold, *runs, *plan_bandit(RECIPE, seed, cold=cold)]


def _trap_config(mode: str, seed: int) -> Config:
    return load_config(RECIPE, [f"seed={seed}", *MODES[mode]])


def _describe(config: Config) -> str:
    rollout, evaluate = config.rollout, config.evaluate
    return (
        f"{config.credit.estimator}, steps {config.steps}, {rollout.groups_per_step} groups of {rollout.group_size}, "
        f"evaluation on {evaluate.tasks} tasks at temperature {evaluate.temperature:g}"
    )


BENCHMARK = Benchmark(
    name="games", seeds=10, quick_seeds=5, plan=plan, report=report, page="stability", publishes_quick=True
)
