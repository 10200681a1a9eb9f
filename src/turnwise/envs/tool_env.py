"""`ToolEnv`: any tools, a task set and reward functions, as an environment.

Invariant: outcome rewards are computed once, when the episode ends; process rewards are paid for the call that
earned them; the two have separate names, so nothing is paid under a name that means something else.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from turnwise.envs.base import Env
from turnwise.errors import EnvError, RewardError
from turnwise.rewards import Episode, Reward, finite
from turnwise.tools import Tool, index_tools, run_calls
from turnwise.tools.tool import encodable
from turnwise.types import Json, Message, Step, Task, ToolCall, ToolResult, ToolSpec

TaskList: TypeAlias = Sequence[Task] | Sequence[Mapping[str, Json]]

_METRICS = ("success", "tool_calls", "tool_errors")
_MAX_NAME_CHARS = 64


@dataclass(slots=True, kw_only=True)
class _Progress:
    """How far an episode has come; made anew by `reset`, so spawned copies never share one."""

    task: Task
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    done: bool = False


class ToolEnv(Env):
    """A message with tool calls is answered by the tools; a message without any is the final answer.

    Pass tools, or subclass it and write `@tool` methods: they are offered too, each bound to its episode's own
    instance. A subclass with state sets it in `begin`; methods that change state should be `@tool(quick=True)`,
    so that several calls in one turn run in order.
    """

    def __init__(
        self,
        *,
        tools: Sequence[Tool] = (),
        tasks: TaskList | Mapping[str, TaskList] = (),
        rewards: Sequence[Reward] = (),
        process: Mapping[str, float] | None = None,
        system: str = "",
        max_turns: int | None = None,
    ) -> None:
        """Checks everything that can be wrong before the first episode.

        Args:
            tools: What the agent may call.
            tasks: One list for every split, or a list per split; a plain mapping becomes the data of a task.
            rewards: Paid once, at the end. The first one defines success: a raw score of at least 1.
            process: The weight of each channel that tools pay into by `ToolResult.rewards`.
            system: The system message, if any.
            max_turns: Part of the task: the last turn allowed ends the episode, scored on no answer.
        """
        self._given_tools = tuple(tools)
        self._own_tools = _find_tools(type(self))
        self._tasks = _read_tasks(tasks)
        self._rewards = tuple(rewards)
        self._process = dict(process or {})
        self._system = system
        self._max_turns = max_turns
        self._progress: _Progress | None = None
        _check_channels(self._rewards, self._process)
        if max_turns is not None and max_turns < 1:
            raise EnvError(f"max_turns is {max_turns}; give at least 1, or None for no limit")
        index_tools(self._offered())

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(item.spec for item in (*self._given_tools, *self._own_tools))

    def tasks(self, split: str) -> Sequence[Task]:
        if not self._tasks:
            return super().tasks(split)
        if split not in self._tasks and "" not in self._tasks:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(self._tasks)}")
        return self._tasks.get(split, self._tasks.get("", ()))

    def begin(self, task: Task, episode_seed: int) -> None:
        """Sets the state of a new episode; a subclass that has state of its own overrides it."""
        return

    def prompt(self, task: Task) -> str:
        """What the user asks first: the task's `question`, unless a subclass overrides it."""
        question = task.data.get("question")
        if not isinstance(question, str):
            raise EnvError(f"task '{task.id}' has no 'question' in its data; add one, or override prompt(task)")
        return question

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self.begin(task, episode_seed)
        opening = [Message(role="user", content=self.prompt(task))]
        if self._system:
            opening.insert(0, Message(role="system", content=self._system))
        self._progress = _Progress(task=task, messages=list(opening))
        return tuple(opening)

    def state_key(self) -> str | None:
        """Names what the agent has read of this task, and after how many turns; how it asked is no part of it."""
        progress = self._progress
        if progress is None:
            return None
        digest = hashlib.blake2b(f"{progress.task.id}\n{progress.turns}".encode(), digest_size=8)
        for message in progress.messages:
            if message.role != "assistant":
                digest.update(f"\n{message.role}\n{message.content}".encode())
        return digest.hexdigest()

    @property
    def turns_taken(self) -> int:
        """How many messages of the agent this episode has answered."""
        return self._progress.turns if self._progress else 0

    async def step(self, message: Message) -> Step:
        progress = self._progress
        if progress is None or progress.done:
            moment = "before reset" if progress is None else "after the episode was done"
            raise EnvError(f"{type(self).__name__} was stepped {moment}; call reset first")
        progress.turns += 1
        progress.messages.append(message)
        if not message.tool_calls:
            return self._finish(progress, answer=message.content)
        results = await run_calls(self._offered(), message.tool_calls)
        progress.tool_calls += len(results)
        progress.tool_errors += sum(not result.ok for result in results)
        replies = tuple(map(_reply, message.tool_calls, results))
        progress.messages.extend(replies)
        paid = self._pay(results)
        if progress.turns == self._max_turns:
            return self._finish(progress, answer=None, messages=replies, paid=paid)
        return Step(messages=replies, rewards=paid, metrics=_counts(progress))

    def _finish(
        self,
        progress: _Progress,
        answer: str | None,
        messages: tuple[Message, ...] = (),
        paid: Mapping[str, float] | None = None,
    ) -> Step:
        progress.done = True
        episode = Episode(
            task=progress.task,
            messages=tuple(progress.messages),
            answer=answer,
            tool_calls=progress.tool_calls,
            tool_errors=progress.tool_errors,
        )
        scores = {reward.name: reward.score(episode) for reward in self._rewards}
        rewards = dict(paid or {}) | {reward.name: reward.weight * scores[reward.name] for reward in self._rewards}
        metrics = _counts(progress) | scores
        if self._rewards:
            metrics["success"] = float(scores[self._rewards[0].name] >= 1.0)
        return Step(messages=messages, rewards=rewards, done=True, metrics=metrics)

    def _pay(self, results: Sequence[ToolResult]) -> dict[str, float]:
        paid: dict[str, float] = {}
        for result in results:
            for channel, value in result.rewards.items():
                if channel not in self._process:
                    raise RewardError(
                        f"a tool pays into '{channel}', which has no weight; add process={{'{channel}': 1.0}}"
                    )
                paid[channel] = paid.get(channel, 0.0) + self._process[channel] * finite(channel, value)
        return paid

    def _offered(self) -> tuple[Tool, ...]:
        """The tools passed in, then the `@tool` methods of the class, bound to this very instance."""
        return (*self._given_tools, *(member.__get__(self) for member in self._own_tools))


def _find_tools(kind: type) -> tuple[Tool, ...]:
    """The `@tool` methods of a class and its bases, unbound."""
    attributes = {name: None for cls in reversed(kind.__mro__) for name in vars(cls)}
    members = (getattr(kind, name, None) for name in attributes)
    return tuple(member for member in members if isinstance(member, Tool))


def _read_tasks(tasks: TaskList | Mapping[str, TaskList]) -> dict[str, Sequence[Task]]:
    """The tasks by split; those of every split stand under the empty name."""
    splits = tasks if isinstance(tasks, Mapping) else {"": tasks}
    return {split: _as_tasks(split, listed) for split, listed in splits.items() if len(listed) > 0}


def _as_tasks(split: str, listed: TaskList) -> Sequence[Task]:
    # Only the first is looked at: a lazy sequence makes its tasks when they are asked for.
    first = None if isinstance(listed, str) else listed[0]
    if isinstance(first, Task):
        return cast(Sequence[Task], listed)
    if not isinstance(first, Mapping):
        raise EnvError(f"tasks must be a list, or lists by split, of Task or of mappings; this holds {listed[0]!r}")
    data = cast(Sequence[Mapping[str, Json]], listed)
    return [Task(id=f"{split or 'task'}-{i}", seed=i, data=item) for i, item in enumerate(data)]


def _check_channels(rewards: Sequence[Reward], process: Mapping[str, float]) -> None:
    if not rewards and not process:
        raise RewardError("an environment that pays nothing teaches nothing; pass rewards=[...] or process={...}")
    seen: set[str] = set()
    for reward in rewards:
        if not isinstance(reward, Reward):
            raise RewardError(f"{reward!r} is not a reward; put @reward above the function")
        if reward.name in seen:
            raise RewardError(f"two rewards are named '{reward.name}'; rename one with @reward(name=...)")
        if reward.name in process:
            raise RewardError(f"'{reward.name}' names both a reward and a process channel; rename one of them")
        if reward.name in _METRICS:
            raise RewardError(f"a reward cannot be named '{reward.name}', which is a metric; choose another name")
        seen.add(reward.name)
    for channel, weight in process.items():
        finite(f"weight of process channel {channel}", weight)


def _reply(call: ToolCall, result: ToolResult) -> Message:
    name = encodable(call.name)[:_MAX_NAME_CHARS] or None
    return Message(role="tool", content=result.content, tool_call_id=call.id, name=name)


def _counts(progress: _Progress) -> dict[str, float]:
    return {"tool_calls": float(progress.tool_calls), "tool_errors": float(progress.tool_errors)}
