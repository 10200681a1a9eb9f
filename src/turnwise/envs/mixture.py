"""Several environments in one run: a table of them by name, and what each asks of the rollout.

Invariant: a task of a mixture carries the name of its environment (`Task.env`, and before its id), and an episode runs
on that environment's own `spawn()`, as it would alone; only its rewards may be scaled.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias, overload

from pydantic import ConfigDict, Field, SkipValidation

from turnwise.envs.base import Env
from turnwise.envs.host import Host
from turnwise.envs.memory import CompactionSettings
from turnwise.envs.wrapper import WrappedEnv
from turnwise.errors import EnvError
from turnwise.settings import Settings
from turnwise.spelling import suggest
from turnwise.types import Message, Step, Task, Turn

MixtureRule: TypeAlias = Literal["fixed", "curriculum", "hard"]

LIMITS = ("max_turns", "turn_tokens", "episode_tokens", "context_tokens", "seconds", "env_seconds", "compaction")
"""The limits of `rollout` that an environment of a mixture may have of its own."""


class EntryOptions(Settings):
    """What one environment of a mixture has of its own; what is null is `rollout`'s."""

    weight: float = Field(default=1.0, gt=0)
    """Its share of a step's groups, relative to the weights of the others."""
    group_size: int | None = Field(default=None, ge=1)
    """Episodes per task."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns of the agent per episode."""
    turn_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens per turn."""
    episode_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens per episode."""
    context_tokens: int | None = Field(default=None, ge=2)
    """Tokens a conversation may hold."""
    seconds: float | None = Field(default=None, gt=0)
    """Seconds per episode."""
    env_seconds: float | None = Field(default=None, gt=0)
    """Seconds per call of environment code."""
    compaction: CompactionSettings | None = None
    """What keeps its conversations within their context."""
    reward_scale: float = Field(default=1.0, gt=0)
    """Every reward of this environment is multiplied by it, so that environments of different scales can be mixed."""
    opens_after: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(default_factory=dict)
    """It is not sampled until these environments have reached these success rates: `{bandit: 0.8}`."""
    demonstrations: int | None = Field(default=None, ge=0)
    """Demonstrations of it for the cold start; null: its share of `sft.demonstrations`, by weight."""


class Entry(EntryOptions):
    """An environment of a mixture, in Python: `Entry(env=Bandit(), weight=2, group_size=16, max_turns=1)`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    env: SkipValidation[Env]


class Mixture(Env):
    """`Mixture({"encyclopedia": Encyclopedia(), "bandit": Entry(env=Bandit(), max_turns=1)}, sampling="hard")`."""

    def __init__(self, entries: Mapping[str, Env | Entry], *, sampling: MixtureRule = "fixed") -> None:
        """Takes environments by name.

        Args:
            entries: The environments, as they are or with options of their own.
            sampling: How success changes their shares; see `env.sampling` in the settings.
        """
        self.entries = {name: _entry(name, one) for name, one in entries.items()}
        self.sampling: MixtureRule = sampling
        check_entries(self.entries)

    def tasks(self, split: str) -> "MixedTasks":
        return MixedTasks({name: entry.env.tasks(split) for name, entry in self.entries.items()}, split)

    def entry_of(self, task: Task) -> Entry:
        """The entry that a task belongs to."""
        if task.env not in self.entries:
            raise EnvError(
                f"task '{task.id}' names no environment of the mixture ('{task.env}'); they are: "
                f"{', '.join(self.entries)}"
            )
        return self.entries[task.env]

    def spawn_for(self, task: Task) -> Env:
        entry = self.entry_of(task)
        spawned = entry.env.spawn_for(task)
        return spawned if entry.reward_scale == 1.0 else ScaledRewards(spawned, entry.reward_scale)

    def episode_limits(self, task: Task) -> Mapping[str, object]:
        entry = self.entry_of(task)
        own = {name: getattr(entry, name) for name in LIMITS}
        return {**entry.env.episode_limits(task), **{name: value for name, value in own.items() if value is not None}}

    @property
    def has_expert(self) -> bool:
        return self._without_expert() is None

    def expert(self) -> Message:
        name = self._without_expert()
        raise EnvError(
            f"env.mixture.{name}: this environment has no expert: set its demonstrations to 0, or give sft.chats"
            if name is not None
            else "a mixture has no expert of its own: each of its environments has"
        )

    def with_faults(self) -> Env:
        struck = {
            name: entry.model_copy(update={"env": entry.env.with_faults()}) for name, entry in self.entries.items()
        }
        return Mixture(struck, sampling=self.sampling)

    @property
    def host(self) -> Host:
        return _Hosts([entry.env.host for entry in self.entries.values()])

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        raise EnvError("a mixture is no world by itself: play an episode on mixture.spawn_for(task)")

    async def step(self, message: Message) -> Step:
        raise EnvError("a mixture is no world by itself: play an episode on mixture.spawn_for(task)")

    def _without_expert(self) -> str | None:
        """The first environment that is to be demonstrated and has no expert."""
        asked = (name for name, one in self.entries.items() if one.demonstrations != 0)
        return next((name for name in asked if not self.entries[name].env.has_expert), None)


class _Hosts(Host):
    """Those of a mixture's environments, before an episode has chosen one."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts

    @property
    def workers(self) -> int:
        return sum(host.workers for host in self._hosts)

    def counts(self) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for host in self._hosts:
            counts.update(host.counts())
        return dict(counts)

    def close(self) -> None:
        for host in self._hosts:
            host.close()


class ScaledRewards(WrappedEnv):
    """An episode of another environment, every reward of which is multiplied: `ScaledRewards(env.spawn(), 2.0)`."""

    def __init__(self, env: Env, scale: float) -> None:
        super().__init__(env)
        self._scale = scale

    async def receive(self, turn: Turn) -> Step:
        return _scale(await super().receive(turn), self._scale)

    async def overflow(self) -> Step | None:
        step = await super().overflow()
        return None if step is None else _scale(step, self._scale)


class MixedTasks(Sequence[Task]):
    """The tasks of several environments, one after the other; `parts` has them by environment."""

    def __init__(self, parts: Mapping[str, Sequence[Task]], split: str) -> None:
        for name, tasks in parts.items():
            if not len(tasks):
                raise EnvError(f"env.mixture.{name}: no tasks in the split '{split}': give it some")
        self.parts = {name: _Tagged(name, tasks) for name, tasks in parts.items()}
        self._split = split

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for tasks in self.parts.values():
            if 0 <= place < len(tasks):
                return tasks[place]
            place -= len(tasks)
        raise IndexError(index)

    def keep(self, wanted: Callable[[Task], bool]) -> "MixedTasks":
        """Those of each environment that are wanted."""
        return MixedTasks({name: tasks.keep(wanted) for name, tasks in self.parts.items()}, self._split)


class _Tagged(Sequence[Task]):
    """Tasks of one environment that carry its name; a slice of them is made at once."""

    def __init__(self, name: str, tasks: Sequence[Task]) -> None:
        self._name, self._tasks = name, tasks

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self._tag(task) for task in self._tasks[index]]
        return self._tag(self._tasks[index])

    def keep(self, wanted: Callable[[Task], bool]) -> list[Task]:
        """Those that are wanted, as the environment names them."""
        return [task for task in self._tasks if wanted(self._tag(task))]

    def _tag(self, task: Task) -> Task:
        return dataclasses.replace(task, id=f"{self._name}/{task.id}", env=self._name)


def first_tasks(tasks: Sequence[Task], count: int) -> Sequence[Task]:
    """The first `count` tasks; those of a mixture, of each of its environments."""
    if not isinstance(tasks, MixedTasks):
        return tasks[:count]
    return [task for part in tasks.parts.values() for task in part[:count]]


def members_of(env: Env, tasks: Sequence[Task]) -> Iterator[tuple[Env, Sequence[Task]]]:
    """Each environment with its tasks: those of a mixture, or the one there is."""
    if not isinstance(env, Mixture) or not isinstance(tasks, MixedTasks):
        yield env, tasks
        return
    for name, entry in env.entries.items():
        yield entry.env, tasks.parts[name]


def check_entries(entries: Mapping[str, EntryOptions]) -> None:
    """Refuses a table that cannot be sampled; the error is of the kind that settings turn into one line."""
    if not entries:
        raise EnvError("a mixture needs an environment: name one or more")
    for name, entry in entries.items():
        if not name.replace("-", "").replace("_", "").isalnum():
            raise EnvError(f"'{name}': an environment's name in a mixture has letters, digits, - and _ alone")
        for other in entry.opens_after:
            if other not in entries:
                known = [one for one in entries if one != name]
                raise EnvError(f"{name}.opens_after: no environment '{other}' in the mixture{suggest(other, known)}")
    openable: set[str] = set()
    while more := {name for name, one in entries.items() if openable.issuperset(one.opens_after)} - openable:
        openable |= more
    if closed := [name for name in entries if name not in openable]:
        raise EnvError(f"{closed[0]}.opens_after: {' and '.join(closed)} wait for each other, so none is ever sampled")


def _entry(name: str, given: Env | Entry) -> Entry:
    entry = given if isinstance(given, Entry) else Entry(env=given)
    if not isinstance(entry.env, Env):
        raise EnvError(f"'{name}': {entry.env!r} is not an environment; if it is a class, call it")
    if isinstance(entry.env, Mixture):
        raise EnvError(f"'{name}': a mixture within a mixture: name its environments here")
    return entry


def _scale(step: Step, scale: float) -> Step:
    if not isinstance(step, Step) or not step.rewards:  # what is no step is refused by the rollout
        return step
    return dataclasses.replace(step, rewards={name: value * scale for name, value in step.rewards.items()})
