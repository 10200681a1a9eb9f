"""`OpenEnv`: an environment behind an OpenEnv server, played by text or by calls of one tool.

Invariant: the task's seed goes to the server's reset, so the members of a group begin alike; each episode has a
connection of its own. What the server calls an invalid action the agent reads; a lost server fails the episode.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Self

from turnwise.envs.adapters.openenv.text import UnreadableError, make_reader, show_observation
from turnwise.envs.adapters.openenv.wire import (
    Connection,
    HttpConnection,
    LostServer,
    Observed,
    RefusedAction,
    SocketConnection,
    fetch_schema,
)
from turnwise.envs.functions import Expert, WithFunctions, find_expert, find_tasks
from turnwise.envs.lazy_tasks import LazyTasks
from turnwise.envs.tool_env import TaskList
from turnwise.errors import EnvError
from turnwise.types import Json, Message, Step, Task, ToolSpec

_TEST_FROM = 1_000_000
"""Seeds of the test begin here, so that no training task has one."""


class OpenEnv(WithFunctions):
    """`OpenEnv(url="http://localhost:8000", prompt="Guess the number.", field="guess")`.

    Args:
        url: Where the server is.
        transport: `websocket`, OpenEnv's own for episodes, or `http`, for servers that keep an episode by its id.
        action: `text`: what the agent writes is the action; `tool`: the agent calls a tool with the server's schema.
        field: Of the action, the field that takes the text; by default the one there is, else the text is JSON.
        pattern: A regular expression that finds the action in the text, such as `<answer>(.*?)</answer>`.
        fixed: Fields that every action has.
        observation: How an observation is shown, by its fields: `{board}` and `{info.score}`; by default its one text,
            or all of it as JSON.
        prompt: The system message.
        tasks: How many seeds there are to train on, or tasks: lists, a .jsonl file, or a function by its name. What
            `reset` in a task's data has is passed to the server's reset beside the seed.
        success_at: The sum of rewards that is a success.
        max_turns: The most moves of an episode; None leaves it to the server.
        expert: A function of the task and the conversation that writes demonstrations, or its name.
        headers: HTTP headers, such as an authorization.
        seconds: Until a server that gives no answer is lost, or one that stays full.
    """

    def __init__(
        self,
        *,
        url: str,
        transport: Literal["websocket", "http"] = "websocket",
        action: Literal["text", "tool"] = "text",
        field: str | None = None,
        pattern: str | None = None,
        fixed: Mapping[str, Json] | None = None,
        observation: str | None = None,
        prompt: str = "",
        tasks: int | TaskList | Mapping[str, TaskList] | str = 1000,
        success_at: float = 1.0,
        max_turns: int | None = None,
        expert: Expert | str | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = 60.0,
    ) -> None:
        """Asks the server for its schemas, to see that it is there and what an action is."""
        self._url, self._transport, self._headers = url.rstrip("/"), transport, dict(headers or {})
        self._seconds, self._template, self._prompt = seconds, observation, prompt
        schema = fetch_schema(self._url, self._headers, seconds)["action"]
        assert isinstance(schema, Mapping), "which fetch_schema has seen"
        self._reader = make_reader(schema, field=field, pattern=pattern, fixed=fixed or {})
        self._by_tool = action == "tool"
        self._tasks_of = _seeds(tasks) if isinstance(tasks, int) else find_tasks(tasks)
        self._success_at, self._max_turns = success_at, max_turns
        self._expert_of = find_expert(expert)
        self._connection: Connection | None = None
        self._messages: list[Message] = []
        self._done = True

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return (self._reader.tool,) if self._by_tool else ()

    def episode_so_far(self) -> tuple[Task, Sequence[Message]]:
        return self._task, self._messages

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        await self._release_episode()
        self._task, self._turns, self._sum, self._done = task, 0, 0.0, False
        self._connection = self._connect()
        given = task.data.get("reset")
        arguments: dict[str, Json] = {"seed": task.seed, **(given if isinstance(given, Mapping) else {})}
        try:
            observed = await self._connection.reset(arguments)
        except RefusedAction as error:
            raise LostServer(f"OpenEnv server {self._url} refused to reset: {error}") from None
        opening = [Message(role="user", content=show_observation(observed.observation, self._template) or "Begin.")]
        if self._prompt:
            opening.insert(0, Message(role="system", content=self._prompt))
        self._messages = list(opening)
        return tuple(opening)

    async def step(self, message: Message) -> Step:
        if self._connection is None or self._done:
            raise EnvError("OpenEnv was stepped before reset or after the episode was done; call reset first")
        self._turns += 1
        self._messages.append(message)
        step = await self._take(self._connection, message)
        self._messages += step.messages
        self._done = step.done
        return step

    async def _take(self, connection: Connection, message: Message) -> Step:
        """Sends the move, if it is one, and tells the agent what came of it."""
        try:
            observed = await connection.step(self._read(message))
        except (UnreadableError, RefusedAction) as error:
            return self._answer(message, f"That is no valid action: {error}", reward=0.0, done=False, invalid=1.0)
        return self._observe(message, observed)

    def _observe(self, message: Message, observed: Observed) -> Step:
        self._sum += observed.reward
        text = show_observation(observed.observation, self._template)
        return self._answer(message, text, reward=observed.reward, done=observed.done, invalid=0.0)

    def _answer(self, message: Message, text: str, *, reward: float, done: bool, invalid: float) -> Step:
        cut_off = not done and self._turns == self._max_turns
        text = text or "(no output)"
        replies = tuple(
            Message(role="tool", content=text, tool_call_id=call.id, name=call.name[:64] or None)
            for call in message.tool_calls
        )
        metrics = {"success": float(self._sum >= self._success_at), "return": self._sum, "invalid_action": invalid}
        ended = done or cut_off
        return Step(
            messages=replies or (() if ended else (Message(role="user", content=text),)),
            rewards={"reward": reward},
            done=ended,
            truncated=cut_off,
            metrics=metrics,
        )

    def _read(self, message: Message) -> dict[str, Json]:
        if not self._by_tool:
            return self._reader.read(message.content)
        if len(message.tool_calls) != 1:
            raise UnreadableError("call act once, with the action as its arguments")
        (call,) = message.tool_calls
        if call.problem or call.name != self._reader.tool.name:
            raise UnreadableError(call.problem or f"there is no tool '{call.name[:64]}'; the tool is act")
        return self._reader.read_call(call.arguments)

    def _connect(self) -> Connection:
        if self._transport == "websocket":
            return SocketConnection(self._url, headers=self._headers, seconds=self._seconds)
        name = uuid.uuid4().hex
        return HttpConnection(self._url, headers=self._headers, seconds=self._seconds, episode_id=name)

    async def _release_episode(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def spawn(self) -> Self:
        twin = super().spawn()
        twin._connection = None
        return twin


def _seeds(count: int) -> Callable[[str], Sequence[Task]]:
    if count < 1:
        raise EnvError(f"OpenEnv: tasks is {count}; give at least 1")

    def choose(split: str) -> Sequence[Task]:
        first = _TEST_FROM if split == "test" else 0
        return LazyTasks(lambda place: Task(id=f"{split}-{place - first}", seed=place), range(first, first + count))

    return choose
