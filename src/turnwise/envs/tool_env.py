"""`ToolEnv`: any tools, a task set and reward functions, as an environment.

Invariant: outcome rewards are computed once, when the episode ends; process rewards are paid for the call that
earned them; the two have separate names, so nothing is paid under a name that means something else.

A subclass may call its own attributes `_progress` or `_pay`: ours have two underscores, which makes them private to
this class, or begin with `_turnwise_`, where our own subclasses use them.
"""

import asyncio
import dataclasses
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias, TypeVar, cast

from turnwise.envs.base import Env
from turnwise.envs.members import check_channels, find_members
from turnwise.errors import EnvError, RewardError
from turnwise.rewards import Episode, Reward, finite
from turnwise.tools import OpenToolset, Tool, Toolset, index_tools, run_calls
from turnwise.tools.episode_thread import EpisodeThread, Paces
from turnwise.tools.tool import encodable
from turnwise.types import Json, Message, Step, Task, ToolCall, ToolResult, ToolSpec

TaskList: TypeAlias = Sequence[Task | Mapping[str, Json]]

T = TypeVar("T")

_MAX_NAME_CHARS = 64
_TASKS_ARE = "tasks must be a list, or lists by split, of Task or of mappings"


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

    Pass tools and rewards, or subclass it and write `@tool` and `@reward` methods, each bound to its episode's own
    instance. A subclass with state sets it in `begin`. An episode's sync code (`begin`, methods, rewards) runs in order
    in one thread of its own, so that it may hold a database connection, say; where all of it is quick or async, there
    is no thread, and it runs inline on the event loop. Async methods run on the event loop, side by side; `begin` and
    `close` may be async, too.
    """

    def __init__(
        self,
        *,
        tools: Sequence[Tool | Toolset] = (),
        tasks: TaskList | Mapping[str, TaskList] = (),
        rewards: Sequence[Reward] = (),
        process: Mapping[str, float] | None = None,
        system: str = "",
        max_turns: int | None = None,
    ) -> None:
        """Checks everything that can be wrong before the first episode.

        Args:
            tools: What the agent may call; a `Toolset`, such as `MCPTools(...)`, brings several.
            tasks: One list for every split, or a list per split; a plain mapping becomes the data of a task.
            rewards: Paid once, at the end, before those of `@reward` methods. The first of all defines success: a raw
                score of at least 1.
            process: The weight of each channel that tools pay into by `ToolResult.rewards`.
            system: The system message, if any.
            max_turns: Part of the task: the last turn allowed ends the episode, scored on no answer.
        """
        self.__given = tuple(tools)
        self._turnwise_opened: dict[int, OpenToolset] = {}
        self.__tasks = read_tasks(tasks)
        self.__given_rewards = tuple(rewards)
        self._turnwise_own_tools = find_members(type(self), Tool, reserved=ToolEnv)
        self.__own_rewards = find_members(type(self), Reward, reserved=ToolEnv)
        self._turnwise_process = dict(process or {})
        self.__system = system
        self._turnwise_max_turns = max_turns
        self._turnwise_progress: _Progress | None = None
        self.__thread: EpisodeThread | None = None
        self.__paces = Paces()
        self.__change: Callable[[Tool], Tool] | None = None
        check_channels(self.__given_rewards, self.__bound_rewards(), self._turnwise_process)
        if max_turns is not None and max_turns < 1:
            raise EnvError(f"max_turns is {max_turns}; give at least 1, or None for no limit")
        if inspect.iscoroutinefunction(self.prompt):
            raise EnvError(
                f"{type(self).__name__}.prompt is async: write a plain def, and await in begin what it needs"
            )
        index_tools(self.__offered())
        codes: list[Tool | Reward] = [*self.__bound_tools(), *self.__given_rewards, *self.__bound_rewards()]
        self.__needs_thread = not all(code.quick or code.is_async for code in codes)

    def with_tools(self, change: Callable[[Tool], Tool]) -> Self:
        """A copy whose tools are changed, each by the same function, when they are called."""
        changed = self.spawn()
        changed.__change = change
        return changed

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(item.spec for item in (*self.__given_tools(), *self._turnwise_own_tools))

    def tasks(self, split: str) -> Sequence[Task]:
        if not self.__tasks:
            return super().tasks(split)
        if split not in self.__tasks and "" not in self.__tasks:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(self.__tasks)}")
        return self.__tasks.get(split, self.__tasks.get("", ()))

    def begin(self, task: Task, episode_seed: int) -> Awaitable[None] | None:
        """Sets the state of a new episode; a subclass that has state of its own overrides it, by `async def` or not."""
        return None

    def prompt(self, task: Task) -> str:
        """What the user asks first: the task's `question`, unless a subclass overrides it."""
        question = task.data.get("question")
        if not isinstance(question, str):
            raise EnvError(f"task '{task.id}' has no 'question' in its data; add one, or override prompt(task)")
        return question

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        await self._release_episode()
        await self.__open_toolsets(task, episode_seed)
        self.__thread = EpisodeThread(self.__paces) if self.__needs_thread else None
        if inspect.iscoroutinefunction(self.begin):
            await self.begin(task, episode_seed)
            question = await self.__in_thread(lambda: self.prompt(task), "prompt")
        else:
            question = await self.__in_thread(lambda: self.__open(task, episode_seed), "begin")
        opening = [Message(role="user", content=question)]
        if self.__system:
            opening.insert(0, Message(role="system", content=self.__system))
        self._turnwise_progress = _Progress(task=task, messages=list(opening))
        return tuple(opening)

    def __open(self, task: Task, episode_seed: int) -> str:
        self.begin(task, episode_seed)
        return self.prompt(task)

    async def _release_episode(self) -> None:
        """Closes the toolsets of the episode."""
        opened, self._turnwise_opened = self._turnwise_opened, {}
        if opened:
            await _all(one.close() for one in opened.values())

    def spawn(self) -> Self:
        twin = super().spawn()
        twin._turnwise_opened = {}
        return twin

    async def run_sync(self, method: Callable[[], T]) -> T:
        """Runs one of its own sync methods where the episode's state lives: in the episode's thread, if it has one."""
        if method == self.state_key and type(self).state_key is ToolEnv.state_key:
            return method()
        return await self.__in_thread(method, getattr(method, "__name__", "a method"))

    def state_key(self) -> str | None:
        """Names what the agent has read of this task, and after how many turns; how it asked is no part of it."""
        progress = self._turnwise_progress
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
        return self._turnwise_progress.turns if self._turnwise_progress else 0

    async def step(self, message: Message) -> Step:
        progress = self._turnwise_progress
        if progress is None or progress.done:
            moment = "before reset" if progress is None else "after the episode was done"
            raise EnvError(f"{type(self).__name__} was stepped {moment}; call reset first")
        progress.turns += 1
        progress.messages.append(message)
        if not message.tool_calls:
            return await self.__finish(progress, answer=message.content)
        results = await run_calls(self.__offered(), message.tool_calls)
        progress.tool_calls += len(results)
        progress.tool_errors += sum(not result.ok for result in results)
        replies = tuple(map(_reply, message.tool_calls, results))
        progress.messages.extend(replies)
        paid = self.__pay(results)
        if progress.turns == self._turnwise_max_turns:
            return await self.__finish(progress, answer=None, messages=replies, paid=paid)
        return Step(messages=replies, rewards=paid, metrics=self.__counts(progress))

    async def __finish(
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
            env=self,
        )
        outcomes = (*self.__given_rewards, *self.__bound_rewards())
        # One after the other, as methods may change what the next one sees.
        scores = {reward.name: await reward.score_episode(episode, self.__thread) for reward in outcomes}
        rewards = dict(paid or {}) | {reward.name: reward.weight * scores[reward.name] for reward in outcomes}
        metrics = self.__counts(progress) | scores
        if outcomes:
            metrics["success"] = float(scores[outcomes[0].name] >= 1.0)
        return Step(messages=messages, rewards=rewards, done=True, metrics=metrics)

    def __pay(self, results: Sequence[ToolResult]) -> dict[str, float]:
        paid: dict[str, float] = {}
        for result in results:
            for channel, value in result.rewards.items():
                if channel not in self._turnwise_process:
                    raise RewardError(
                        f"a tool pays into '{channel}', which has no weight; add process={{'{channel}': 1.0}}"
                    )
                paid[channel] = paid.get(channel, 0.0) + self._turnwise_process[channel] * finite(channel, value)
        return paid

    def __offered(self) -> tuple[Tool, ...]:
        """The tools passed in, then the `@tool` methods of the class, bound to this very instance and its thread."""
        own = self.__bound_tools()
        if self.__thread is not None:
            own = tuple(dataclasses.replace(item, thread=self.__thread) for item in own)
        offered = (*self.__given_tools(), *own)
        return offered if self.__change is None else tuple(map(self.__change, offered))

    def __given_tools(self) -> tuple[Tool, ...]:
        """Those passed in; of a toolset, the episode's own once there is one."""
        tools: list[Tool] = []
        for place, given in enumerate(self.__given):
            tools += self._turnwise_opened.get(place, given).tools if isinstance(given, Toolset) else [given]
        return tuple(tools)

    async def __open_toolsets(self, task: Task, episode_seed: int) -> None:
        """Opens all, side by side; what was opened stays known, so that `_release_episode` closes it whatever fails."""

        async def open_one(place: int, toolset: Toolset) -> None:
            self._turnwise_opened[place] = await toolset.open(task, episode_seed)

        if toolsets := [(place, given) for place, given in enumerate(self.__given) if isinstance(given, Toolset)]:
            await _all(open_one(place, toolset) for place, toolset in toolsets)

    def __bound_tools(self) -> tuple[Tool, ...]:
        return tuple(member.__get__(self) for member in self._turnwise_own_tools)

    def __bound_rewards(self) -> tuple[Reward, ...]:
        return tuple(member.__get__(self) for member in self.__own_rewards)

    def __counts(self, progress: _Progress) -> dict[str, float]:
        counts: dict[str, float] = {}
        if self.__given or self._turnwise_own_tools:
            counts = {"tool_calls": float(progress.tool_calls), "tool_errors": float(progress.tool_errors)}
        for toolset in self._turnwise_opened.values():
            for name, value in toolset.metrics.items():
                counts[name] = counts.get(name, 0.0) + value
        return counts

    async def __in_thread(self, work: Callable[[], T], what: str) -> T:
        """Runs sync code of the episode in its thread; inline where it has none."""
        return work() if self.__thread is None else await self.__thread.run(work, what=what, seconds=None)


def read_tasks(tasks: TaskList | Mapping[str, TaskList]) -> dict[str, Sequence[Task]]:
    """The tasks by split; those of every split stand under the empty name."""
    splits = tasks if isinstance(tasks, Mapping) else {"": tasks}
    # A split that is named and empty stays, and is refused by its name where it is played.
    return {split: _as_tasks(split, listed) for split, listed in splits.items() if split or len(listed) > 0}


def _as_tasks(split: str, listed: TaskList) -> Sequence[Task]:
    if not len(listed):
        return ()
    if isinstance(listed, str | Mapping):
        raise EnvError(f"{_TASKS_ARE}; this is {listed!r:.80}")
    # A lazy sequence makes its tasks when they are asked for, so only its first is looked at.
    if type(listed) not in (list, tuple) and isinstance(listed[0], Task):
        return cast(Sequence[Task], listed)
    return [_as_task(f"{split or 'task'}-{i}", i, item) for i, item in enumerate(listed)]


def _as_task(name: str, seed: int, item: Task | Mapping[str, Json]) -> Task:
    if isinstance(item, Task):
        return item
    if not isinstance(item, Mapping):
        raise EnvError(f"{_TASKS_ARE}; this holds {item!r:.80}")
    return Task(id=name, seed=seed, data=item)


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Waits for all of it, side by side, and then raises the first error."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if result is not None:
            raise result


def _reply(call: ToolCall, result: ToolResult) -> Message:
    name = encodable(call.name)[:_MAX_NAME_CHARS] or None
    return Message(role="tool", content=result.content, tool_call_id=call.id, name=name)
