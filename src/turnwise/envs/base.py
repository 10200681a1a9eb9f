"""The environment's contract: messages in, messages and rewards out; it never sees a token.

Invariant: an episode is fixed by (task, episode seed, the agent's messages). The task's seed makes the level or the
question, `episode_seed` makes the noise, so the members of a group start alike and then differ.
"""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Self, TypeVar

from turnwise.envs.host import HERE, Host
from turnwise.errors import EnvError
from turnwise.types import Message, Step, Task, ToolSpec, Turn, TurnRequest

T = TypeVar("T")

_ANY_TURN = TurnRequest()


async def close_env(env: "Env") -> None:
    """Closes an episode's environment; a plain `def close(self)` runs where the episode's state lives."""
    closing = env.close if inspect.iscoroutinefunction(env.close) else partial(env.run_sync, env.close)
    try:
        await closing()
    finally:
        await env._release_episode()


class Env(ABC):
    """One world an agent can act in. Subclass it, write `reset` and `step`, and offer `tasks`.

    An instance is made once from a recipe's settings and may hold heavy, read-only things (an index, a
    level set). Each episode runs on `spawn()`, a shallow copy, so `reset` must set all state of an episode.
    """

    _made_with: tuple[tuple[object, ...], dict[str, object]] | None = None
    """The arguments of the constructor, so that a run can record them; None where it has none of its own."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools the model may call; most games have none."""
        return ()

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of `"train"` or `"test"`: a list, or a lazy sequence when they are made from seeds."""
        raise EnvError(f"{type(self).__name__} brings no tasks: pass tasks=... or write tasks(split)")

    @abstractmethod
    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        """Begins an episode and returns what the agent reads first."""

    @abstractmethod
    async def step(self, message: Message) -> Step:
        """Answers the agent's message. Nothing the model can write may raise here: answer in words."""

    async def receive(self, turn: Turn) -> Step:
        """Answers a turn: by `step`, from its message alone, unless a program must be told more (optional: gateway)."""
        assert turn.message is not None, "a turn that was just taken has its message"
        return await self.step(turn.message)

    def turn_request(self) -> TurnRequest:
        """What the next turn is asked for beyond its messages (optional: gateway)."""
        return _ANY_TURN

    async def overflow(self) -> Step | None:
        """The conversation leaves no room to answer: a step that rewrites it, or None, which ends the episode."""
        return None

    async def close(self) -> None:
        """Frees what `reset` took; called once per episode, whatever happened. A subclass may write a plain `def`."""
        return

    async def _release_episode(self) -> None:
        """Frees what a base class took for the episode; called after `close`, which a subclass may replace."""
        return

    def spawn(self) -> Self:
        """A fresh instance for one episode, sharing what is read-only."""
        return copy.copy(self)

    def spawn_for(self, task: Task) -> "Env":
        """A fresh instance for one episode of this task; a mixture chooses by the task which environment it is."""
        return self.spawn()

    def episode_limits(self, task: Task) -> Mapping[str, object]:
        """Limits for episodes of this task in place of the rollout's: `{"max_turns": 20}` (optional)."""
        return {}

    def fork(self) -> Self:
        """The same episode a second time, from here on (optional: branching)."""
        raise EnvError(f"{type(self).__name__} cannot fork")

    def state_key(self) -> str | None:
        """A name for the state the agent acts in now, equal exactly when states are (optional: GiGPO)."""
        return None

    @property
    def prototype(self) -> "Env":
        """The environment as the user made it: this one, unless it runs elsewhere."""
        return self

    @property
    def host(self) -> Host:
        """Where its episodes run: in this process, unless it was placed elsewhere."""
        return HERE

    def with_faults(self) -> "Env":
        """The same environment, with the faults of `env.chaos` where it has any."""
        return self

    @property
    def has_deadline(self) -> bool:
        """Whether it bounds its calls itself, however long they take: `rollout.env_seconds` is not for it then."""
        return False

    @property
    def has_expert(self) -> bool:
        """Whether `expert` can be asked."""
        return type(self).expert is not Env.expert

    def expert(self) -> Message:
        """An expert's message in this state (optional: demonstrations for a cold start, an upper bound)."""
        raise EnvError(f"{type(self).__name__} has no expert: give sft a file of chats instead")

    def expert_summary(self) -> Message:
        """An expert's summary of the episode so far (optional: demonstrations with `rollout.compaction`)."""
        raise EnvError(
            f"{type(self).__name__} has no expert_summary: write one, or set rollout.compaction.kind to oldest"
        )

    @property
    def keeps_conversation(self) -> bool:
        """Whether it decides itself what the agent reads, as a program behind the gateway does (optional)."""
        return False

    async def run_sync(self, method: Callable[[], T]) -> T:
        """Runs one of its own sync methods, such as `env.expert`, where the episode's state lives: here, inline."""
        return method()


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    """The same constructor, which notes its arguments; of several that call each other, the outermost."""

    @wraps(init)
    def record(self: Env, *args: object, **kwargs: object) -> None:
        if self._made_with is None:
            object.__setattr__(self, "_made_with", (args, kwargs))  # a subclass may be frozen
        init(self, *args, **kwargs)

    return record
