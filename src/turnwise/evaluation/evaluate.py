"""Plays held-out tasks with any agent and scores them: over all tasks, and over slices by fields of their data.

Invariant: an episode that infrastructure ended is counted as failed and enters no other score; scores depend on the
trajectories alone, whichever agent played.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from turnwise.agents.base import Agent
from turnwise.agents.policy import PolicyAgent
from turnwise.envs.base import Env
from turnwise.errors import ConfigError
from turnwise.evaluation.intervals import clustered_interval, pass_curve, wilson_interval
from turnwise.ledger import Ledger
from turnwise.rollout import Limits, run_groups
from turnwise.rollout.fleet import Fleet
from turnwise.rollout.fleet_groups import fleet_groups
from turnwise.rollout.summary import metric_means
from turnwise.types import Group, Json, StopReason, Task, Trajectory

_DEFAULT_FIELDS = ("hops", "source")
_ENV = "env"
"""The field by which a mixture is always sliced: `Task.env`."""
_MOST_SLICES = 20
"""A field with more values than this names tasks rather than kinds of them: it makes slices only where asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of some tasks: `Scores(success=.93, interval=(.89, .96), tasks=200, episodes=200, ...)`."""

    success: float
    """The mean over tasks of the share of their scored episodes that succeeded: pass@1."""
    interval: tuple[float, float]
    """The 95% interval of the success rate: Wilson's for one sample per task, else clustered by task."""
    reward: float
    turns: float
    """Turns of an episode, on average."""
    tasks: int
    episodes: int
    """Scored episodes."""
    failed: int
    """Episodes that were not scored: environment, tools or endpoint broke."""
    pass_at: Mapping[int, float] = field(default_factory=dict)
    """Mean pass@k over tasks, by k; empty for one response per task."""
    means: Mapping[str, float] = field(default_factory=dict)
    """The environment's other metrics, such as `f1`, on average."""

    def metrics(self) -> dict[str, float]:
        return {
            "success": self.success,
            "success_low": self.interval[0],
            "success_high": self.interval[1],
            "reward": self.reward,
            "turns": self.turns,
            "tasks": float(self.tasks),
            "episodes": float(self.episodes),
            "failed": float(self.failed),
            **{f"pass@{k}": value for k, value in self.pass_at.items()},
            **{f"env/{name}": value for name, value in self.means.items()},
        }

    def __str__(self) -> str:
        low, high = self.interval
        words = (
            f"success {self.success:.3f} [{low:.3f}, {high:.3f}], reward {self.reward:.3f}, {self.episodes} episodes"
        )
        return f"{words}, {self.failed} failed" if self.failed else words


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The scores of the tasks with one value in a field: `Slice(field="hops", value="2", scores=...)`."""

    field: str
    value: str
    scores: Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores over all tasks and over slices of them, and the episodes behind them."""

    scores: Scores
    slices: tuple[Slice, ...] = ()
    groups: Sequence[Group]

    @property
    def success(self) -> float:
        return self.scores.success

    @property
    def interval(self) -> tuple[float, float]:
        return self.scores.interval

    @property
    def reward(self) -> float:
        return self.scores.reward

    @property
    def episodes(self) -> int:
        return self.scores.episodes

    def metrics(self) -> dict[str, float]:
        """By `area/name`, as a run stores them: `evaluate/success`, `evaluate/hops=2/success`, ..."""
        named = {f"evaluate/{name}": value for name, value in self.scores.metrics().items()}
        for part in self.slices:
            area = f"evaluate/{part.field}={part.value}"
            named |= {f"{area}/{name}": value for name, value in part.scores.metrics().items()}
        return named

    @property
    def by_env(self) -> dict[str, Scores]:
        """The scores of each environment of a mixture; empty outside one."""
        return {part.value: part.scores for part in self.slices if part.field == _ENV and self.groups[0].task.env}

    def __str__(self) -> str:
        ranges = {name: (one.success, *one.interval) for name, one in self.by_env.items()}
        parts = [f"{name} {mean:.3f} [{low:.3f}, {high:.3f}]" for name, (mean, low, high) in ranges.items()]
        return f"{self.scores} ({', '.join(parts)})" if parts else str(self.scores)


async def evaluate(
    agent: Agent,
    env: Env,
    tasks: Sequence[Task],
    *,
    limits: Limits | None = None,
    samples_per_task: int = 1,
    seed: int = 0,
    group_by: Sequence[str] | None = None,
    ledger: Ledger | None = None,
    fleet: Fleet | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Plays every task and scores it, over all tasks and for each value of the data fields that `group_by` names.

    With a `fleet`, its workers play in the agent's place, by the agent's decoding.
    """
    fields = choose_fields(tasks, group_by)
    if any(task.env for task in tasks):
        fields = (_ENV, *fields)
    if fleet is not None:
        assert isinstance(agent, PolicyAgent), "workers sample from the policy"
        play = partial(fleet_groups, fleet, agent.decoding, tasks)
    else:
        play = partial(run_groups, agent, env, tasks, limits=limits)
    groups = await play(group_size=samples_per_task, seed=seed, ledger=ledger, progress=progress)
    return Evaluation(scores=score(groups), slices=tuple(_slice(groups, fields)), groups=groups)


def score(groups: Sequence[Group]) -> Scores:
    """The scores of some tasks' groups.

    Where infrastructure left tasks with unequal numbers of samples, each task still counts once in `success`, as it
    does in its interval and in pass@k.
    """
    scored_by_task = [[t for t in group.trajectories if t.stop is not StopReason.ENV_FAILED] for group in groups]
    trials = [len(scored) for scored in scored_by_task]
    successes = [sum(trajectory.success for trajectory in scored) for scored in scored_by_task]
    scored = [trajectory for task in scored_by_task for trajectory in task]
    several = any(len(group.trajectories) > 1 for group in groups)
    # Exact, so that tasks of equally many samples give successes / episodes to the last digit.
    rates = [Fraction(won, tried) for won, tried in zip(successes, trials, strict=True) if tried]
    return Scores(
        success=float(sum(rates) / max(len(rates), 1)),
        interval=clustered_interval(successes, trials) if several else wilson_interval(sum(successes), len(scored)),
        # Summed by channel, as channels are reported: another order rounds otherwise.
        reward=sum(math.fsum(trajectory.rewards.values()) for trajectory in scored) / max(len(scored), 1),
        turns=sum(len(trajectory.turns) for trajectory in scored) / max(len(scored), 1),
        tasks=len(groups),
        episodes=len(scored),
        failed=sum(len(group.trajectories) for group in groups) - len(scored),
        pass_at=pass_curve(successes, trials) if several else {},
        means=_means(scored),
    )


def choose_fields(tasks: Sequence[Task], group_by: Sequence[str] | None) -> tuple[str, ...]:
    """The fields of the tasks' data to slice by: those in `group_by`, else the default ones that tasks have."""
    data = [task.data for task in tasks]
    if group_by is None:
        values = {name: {_label(one[name]) for one in data if name in one} for name in _DEFAULT_FIELDS}
        return tuple(name for name, found in values.items() if 0 < len(found) <= _MOST_SLICES)
    known = sorted({name for one in data for name in one})
    group_by = [name for name in group_by if name != _ENV or not any(task.env for task in tasks)]
    for name in group_by:
        if name not in known:
            raise ConfigError(
                f"evaluate.group_by: no task has '{name}' in its data; they have: {', '.join(known) or 'none'}"
            )
    return tuple(group_by)


def _slice(groups: Sequence[Group], fields: Sequence[str]) -> Iterator[Slice]:
    for name in fields:
        members: dict[str, list[Group]] = {}
        for group in groups:
            task = group.task
            if name == _ENV and task.env:
                members.setdefault(task.env, []).append(group)
            elif name in task.data or not task.env:  # in a mixture, one environment's field is no other's
                members.setdefault(_label(task.data.get(name)), []).append(group)
        for value in members if name == _ENV else sorted(members, key=_in_order):
            yield Slice(field=name, value=value, scores=score(members[value]))


def _label(value: Json) -> str:
    """`2`, `musique`; a dash for a task without the field."""
    return "–" if value is None or value == "" else str(value)


def _in_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their size, then words."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def _means(scored: Sequence[Trajectory]) -> dict[str, float]:
    """Means by name, over the episodes that have the metric."""
    return {name: mean for name, mean in metric_means(scored).items() if name != "success"}
