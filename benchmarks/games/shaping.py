"""Rollout shaping: how to spend a fixed budget of episodes, one question per table of RAGEN's (arXiv 2504.20073).

Invariant: within an environment, all cells start from equal cold starts, sample as many episodes and make as many
updates; a cell changes the one thing it asks about. The cell that changes nothing is trained once and stands in all
tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.jobs import Job
from benchmarks.harness.training import training_job
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One setting, and the values it is tried at: a table with a row per value."""

    name: str
    """In the names of jobs and results: `responses`."""
    title: str
    """What the rows are, for a table's first column."""
    values: Sequence[int]
    quick: Sequence[int]
    """Those that a quick run tries."""
    own: Callable[[Config], int]
    """The value that a recipe itself has."""
    overrides: Callable[[Config, int], Sequence[str]]
    """What a value changes of the recipe."""
    paper: Mapping[str, Mapping[int, float]]
    """The paper's success in percent, by environment and value, where it has the same game."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A game that the questions are tried on."""

    title: str
    recipe: str
    overrides: tuple[str, ...] = ()
    questions: tuple[Question, ...]
    quick: bool = False
    """Whether a quick run includes it."""


def _actions_per_turn(config: Config) -> int:
    assert isinstance(config.env, EnvSettings), "one game"
    actions = config.env.args["max_actions_per_turn"]
    assert isinstance(actions, int)
    return actions


def _redistribute(config: Config, responses: int) -> list[str]:
    """The same episodes over more or fewer tasks."""
    budget = config.rollout.groups_per_step * config.rollout.group_size
    assert budget % responses == 0, f"{budget} episodes are no groups of {responses}"
    return [f"rollout.group_size={responses}", f"rollout.groups_per_step={budget // responses}"]


RESPONSES = Question(
    name="responses",
    title="responses per task",
    values=(32, 16, 8, 4, 2, 1),
    quick=(16, 8, 2),
    own=lambda config: config.rollout.group_size,
    overrides=_redistribute,
    paper={
        "frozen_lake": {32: 18.0, 16: 19.5, 8: 17.2, 4: 21.5, 2: 12.5, 1: 12.5},
        "sokoban": {32: 21.1, 16: 20.3, 8: 20.3, 4: 20.7, 2: 19.9, 1: 19.5},
    },
)
ACTIONS = Question(
    name="actions",
    title="actions per turn",
    values=(1, 2, 3, 4, 5),
    quick=(1, 2),
    own=_actions_per_turn,
    overrides=lambda config, actions: [f"env.args.max_actions_per_turn={actions}"],
    paper={
        "frozen_lake": {1: 11.7, 2: 18.4, 3: 20.9, 4: 20.7, 5: 21.1},
        "sokoban": {1: 12.1, 2: 16.4, 3: 19.5, 4: 27.0, 5: 28.1},
    },
)
ONLINE = Question(
    name="online",
    title="updates per rollout (Online-k)",
    values=(1, 5, 10),
    quick=(1, 5, 10),
    own=lambda config: config.rollout.updates_per_rollout,
    overrides=lambda config, updates: [f"rollout.updates_per_rollout={updates}"],
    paper={},
)
QUESTIONS = (RESPONSES, ACTIONS, ONLINE)

_LAKE = "games-frozen-lake"
ENVIRONMENTS = {
    "frozen_lake": Environment(title="FrozenLake", recipe=_LAKE, questions=QUESTIONS, quick=True),
    "frozen_lake_ppo": Environment(
        title="FrozenLake, PPO",
        recipe=_LAKE,
        overrides=("credit.estimator=gae", "learner.critic.optimizer.lr=1e-3"),
        questions=(RESPONSES,),
    ),
    "sokoban": Environment(title="Sokoban", recipe="games-sokoban", questions=QUESTIONS),
}
QUICK = ("steps=10", "evaluate.tasks=128")


def environments(*, quick: bool) -> list[str]:
    """The games of a run, by name."""
    return [name for name, environment in ENVIRONMENTS.items() if environment.quick or not quick]


def values(question: Question, config: Config, *, quick: bool) -> list[int]:
    """The rows of a table; group-relative estimators have none for one response per task."""
    tried = question.quick if quick else question.values
    grouped = question is RESPONSES and config.credit.compares_groups
    return [value for value in tried if not (grouped and value == 1)]


def cell_name(question: Question, config: Config, value: int) -> str:
    """`responses-16`, or `base` where the recipe itself has this value."""
    return "base" if value == question.own(config) else f"{question.name}-{value}"


def shaping_config(environment: str, seed: int, *overrides: str, quick: bool) -> Config:
    """The recipe of an environment, for one seed, with what a cell changes."""
    chosen = ENVIRONMENTS[environment]
    return load_config(chosen.recipe, [*chosen.overrides, *(QUICK if quick else ()), f"seed={seed}", *overrides])


def plan_shaping(environment: str, seed: int, *, quick: bool) -> list[Job]:
    """The cells of one environment and seed, after the cold starts they start from.

    Demonstrations are played under the same limit of actions per turn as the agent plays, so each has its own.
    """
    base = shaping_config(environment, seed, quick=quick)
    colds: dict[int, Job] = {}
    jobs: dict[str, Job] = {}
    for question in ENVIRONMENTS[environment].questions:
        for value in values(question, base, quick=quick):
            changed = question.overrides(base, value)
            config = shaping_config(environment, seed, *changed, quick=quick)
            actions = _actions_per_turn(config)
            if actions not in colds:
                alike = ACTIONS.overrides(base, actions)
                cold = shaping_config(environment, seed, *alike, "steps=0", "evaluate.tasks=1", quick=quick)
                colds[actions] = training_job(cold_start_name(environment, config, seed), cold)
            name = job_name(environment, cell_name(question, base, value), seed)
            jobs.setdefault(name, training_job(name, config, after=colds[actions]))
    return [*colds.values(), *jobs.values()]


def cold_start_name(environment: str, config: Config, seed: int) -> str:
    """The job that a cell with this config starts from."""
    return job_name(environment, f"cold-start-{_actions_per_turn(config)}", seed)


def job_name(environment: str, cell: str, seed: int) -> str:
    return f"shaping/{environment}/{cell}/seed-{seed}"
