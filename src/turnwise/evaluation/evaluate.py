"""Plays held-out tasks and counts: over all of them, and apart by what their data says.

Invariant: an episode that failed for reasons of infrastructure is counted as failed and enters no other figure; figures
depend on the results and the seed alone, whoever played.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.agents import ApiPlayer, Response, TaskResult, play_tasks, read_group
from turnwise.envs.base import Env
from turnwise.errors import ConfigError
from turnwise.evaluation.intervals import bootstrap_interval, pass_curve, wilson_interval
from turnwise.rollout import Player, run_groups
from turnwise.seeds import derive_seed
from turnwise.types import Group, Json, Task

_USUAL = ("hops", "source")
_MOST_PARTS = 20
"""A field with more values than this names tasks rather than kinds of them: it is not told apart unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What some tasks came to: `Figures(success=.93, interval=(.89, .96), tasks=200, episodes=200, ...)`."""

    success: float
    """The share of the scored episodes."""
    interval: tuple[float, float]
    """95% of such intervals hold the true success rate: Wilson's for one response per task, else the bootstrap's."""
    bootstrap: tuple[float, float]
    """The percentile bootstrap's over tasks."""
    reward: float
    turns: float
    """Turns of an episode, on average."""
    tasks: int
    episodes: int
    """How many were scored."""
    failed: int
    """How many were not: environment, tools or endpoint broke."""
    pass_at: Mapping[int, float] = field(default_factory=dict)
    """Mean pass@k over tasks, by k; empty for one response per task."""
    means: Mapping[str, float] = field(default_factory=dict)
    """The environment's other metrics, such as `f1`, on average."""

    def metrics(self) -> dict[str, float]:
        return {
            "success": self.success,
            "success_low": self.interval[0],
            "success_high": self.interval[1],
            "bootstrap_low": self.bootstrap[0],
            "bootstrap_high": self.bootstrap[1],
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
class Part:
    """The tasks whose data says this: `Part(field="hops", value="2", figures=...)`."""

    field: str
    value: str
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Figures over all tasks and over parts of them, and what is behind them."""

    figures: Figures
    parts: tuple[Part, ...] = ()
    results: Sequence[TaskResult]
    groups: Sequence[Group] = ()
    """The same episodes with their tokens, where a model of ours played them."""

    @property
    def success(self) -> float:
        return self.figures.success

    @property
    def interval(self) -> tuple[float, float]:
        return self.figures.interval

    @property
    def reward(self) -> float:
        return self.figures.reward

    @property
    def episodes(self) -> int:
        return self.figures.episodes

    def metrics(self) -> dict[str, float]:
        """By `area/name`, as they are written into a run: `evaluate/success`, `evaluate/hops=2/success`, ..."""
        named = {f"evaluate/{name}": value for name, value in self.figures.metrics().items()}
        for part in self.parts:
            place = f"evaluate/{part.field}={part.value}"
            named |= {f"{place}/{name}": value for name, value in part.figures.metrics().items()}
        return named

    def __str__(self) -> str:
        return str(self.figures)


async def evaluate(
    player: Player | ApiPlayer,
    env: Env,
    tasks: Sequence[Task],
    *,
    samples_per_task: int = 1,
    seed: int = 0,
    group_by: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Plays every task and counts successes, in all and for each value of the tasks' data that `group_by` names."""
    fields = choose_fields(tasks, group_by)
    groups: Sequence[Group] = ()
    if isinstance(player, ApiPlayer):
        results = await play_tasks(player, env, tasks, group_size=samples_per_task, seed=seed, progress=progress)
    else:
        groups = await run_groups(player, env, tasks, group_size=samples_per_task, seed=seed, progress=progress)
        results = [read_group(group, player.render) for group in groups]
    return Evaluation(
        figures=measure(results, seed=seed),
        parts=tuple(_take_apart(results, fields, seed)),
        results=results,
        groups=groups,
    )


def measure(results: Sequence[TaskResult], *, seed: int) -> Figures:
    """The figures of some tasks' results."""
    trials = [len(result.scored) for result in results]
    successes = [sum(response.success for response in result.scored) for result in results]
    scored = [response for result in results for response in result.scored]
    several = any(len(result.responses) > 1 for result in results)
    bootstrap = bootstrap_interval(successes, trials, seed=derive_seed(seed, "bootstrap"))
    return Figures(
        success=sum(successes) / max(len(scored), 1),
        interval=bootstrap if several else wilson_interval(sum(successes), len(scored)),
        bootstrap=bootstrap,
        reward=sum(response.reward for response in scored) / max(len(scored), 1),
        turns=sum(response.turns for response in scored) / max(len(scored), 1),
        tasks=len(results),
        episodes=len(scored),
        failed=sum(len(result.responses) for result in results) - len(scored),
        pass_at=pass_curve(successes, trials) if several else {},
        means=_means(scored),
    )


def choose_fields(tasks: Sequence[Task], group_by: Sequence[str] | None) -> tuple[str, ...]:
    """The fields of the tasks' data to tell figures apart by: those asked for, else the usual ones that are there."""
    data = [task.data for task in tasks]
    if group_by is None:
        values = {name: {_label(one[name]) for one in data if name in one} for name in _USUAL}
        return tuple(name for name, found in values.items() if 0 < len(found) <= _MOST_PARTS)
    known = sorted({name for one in data for name in one})
    for name in group_by:
        if name not in known:
            raise ConfigError(
                f"evaluate.group_by: no task has '{name}' in its data; they have: {', '.join(known) or 'none'}"
            )
    return tuple(group_by)


def _take_apart(results: Sequence[TaskResult], fields: Sequence[str], seed: int) -> Iterator[Part]:
    for name in fields:
        members: dict[str, list[TaskResult]] = {}
        for result in results:
            members.setdefault(_label(result.task.data.get(name)), []).append(result)
        for value in sorted(members, key=_in_order):
            yield Part(field=name, value=value, figures=measure(members[value], seed=seed))


def _label(value: Json) -> str:
    """`2`, `musique`; a dash for a task that does not say."""
    return "–" if value is None or value == "" else str(value)


def _in_order(label: str) -> tuple[bool, float, str]:
    """Numbers by their size, then words."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def _means(scored: Sequence[Response]) -> dict[str, float]:
    """Means by name; an episode that does not have a metric counts as zero, as in a rollout's summary."""
    names = sorted({name for response in scored for name in response.metrics} - {"success"})
    return {name: sum(response.metrics.get(name, 0.0) for response in scored) / len(scored) for name in names}
