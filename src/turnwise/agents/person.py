"""A person at a terminal as an agent: reads what the policy would read, writes what it would write.

Invariant: a person's text goes the way a model's does (`parse_text`, then `Env.step`), so whatever the
environment answers here, it answers in training; shorthand only saves typing.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from turnwise.agents.base import AgentStopped, GiveBack, MessageSession, Move
from turnwise.envs.base import Env
from turnwise.envs.games.game import TextGame
from turnwise.render.formats import format_call, parse_text
from turnwise.types import Json, Message, Step, StopReason, ToolSpec

Ask: TypeAlias = Callable[[], str]
"""Waits for one line; EOFError or KeyboardInterrupt means that the person leaves."""
Show: TypeAlias = Callable[[RenderableType], None]

_COMMANDS: Final = """Write what the assistant says, on one line, or:
  /call NAME key=value key="two words"   call a tool
  /call NAME {"key": "value"}            the same, with the arguments as JSON
  /help                                  this, and the tools
  /quit                                  leave"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAgent:
    """`PersonAgent(ask=input, show=print)`: one person, who plays one episode at a time."""

    ask: Ask
    show: Show
    concurrency = 1

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "PersonSession":
        return PersonSession(self, env)


class PersonSession(MessageSession):
    """Shows what the agent would read, and reads what the person writes until it is a move."""

    def __init__(self, person: PersonAgent, env: Env) -> None:
        self._ask, self._show, self._env = person.ask, person.show, env

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        for message in messages:
            self._show(_draw(message))
        self._show(_draw_help(self._env))

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        while (line := self._read_line()) is not None:
            command, _, rest = line.partition(" ")
            if command == "/quit":
                break
            if command == "/help":
                self._show(_draw_help(self._env))
            elif command == "/call":
                try:
                    return self._move(line, _expand_call(rest, self._env.tools))
                except ValueError as error:
                    self._show(Text(f"/call: {error}", style="red"))
            elif line:
                return self._move(line, _expand_answer(line, self._env))
        raise AgentStopped(StopReason.AGENT_QUIT)

    def _move(self, line: str, text: str) -> Move:
        """The move that a line stands for; what shorthand expanded to is shown."""
        if text != line:
            self._show(Text(text, style="bold"))
        return Move(message=parse_text(text))

    async def observe(self, step: Step) -> tuple[int, ...]:
        if step.rewrites is not None:
            self._show(Text("The conversation now reads:", style="italic"))
        for message in step.messages if step.rewrites is None else step.rewrites:
            self._show(_draw(message))
        if step.rewards:
            self._show(Text(f"reward: {list_channels(step.rewards)}", style="green"))
        if step.done:
            self._show(Text(f"The episode is over. {list_channels(step.metrics)}".rstrip(), style="bold"))
        return ()

    def _read_line(self) -> str | None:
        """The next line, or None when the person leaves."""
        try:
            return self._ask().strip()
        except (EOFError, KeyboardInterrupt):
            return None


def list_channels(values: Mapping[str, float]) -> str:
    """`call 0.5, end 1`."""
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _expand_answer(line: str, env: Env) -> str:
    """In a game `Up || Left` is the answer, in the tags that the assistant would write; with a tag in it, all is."""
    if not isinstance(env, TextGame) or "<" in line:
        return line
    return f"{'<think>.</think>' if env.thinks else ''}<answer>{line}</answer>"


def _expand_call(shorthand: str, tools: Sequence[ToolSpec]) -> str:
    """`search query=Oslo k=3` as the assistant would write it; a ValueError says what is wrong."""
    name, _, given = shorthand.strip().partition(" ")
    given = given.strip()
    if not name:
        raise ValueError("which tool? " + (", ".join(tool.name for tool in tools) or "there are none here"))
    if given.startswith("{"):
        return format_call(name, given)
    parameters = next((tool.parameters for tool in tools if tool.name == name), {})
    arguments: dict[str, Json] = {}
    for pair in shlex.split(given):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"'{pair}' is not key=value")
        arguments[key] = value if _is_text(parameters, key) else _read_value(value)
    return format_call(name, arguments)


def _is_text(parameters: Mapping[str, Json], key: str) -> bool:
    """Whether the schema wants a string, so that `year=1990` may stay one."""
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _read_value(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value


def _draw(message: Message) -> Text:
    who = f"{message.role} {message.name}" if message.name else message.role
    return Text.assemble((who, "cyan"), "\n", (message.content, "dim"))


def _draw_help(env: Env) -> Text:
    drawn = Text(_COMMANDS, style="dim italic")
    if isinstance(env, TextGame):
        drawn.append(f"\nIn this game a line without tags is your answer: {_expand_answer('...', env)}")
    for tool in env.tools:
        drawn.append(f"\n{tool.name}", style="bold not italic")
        drawn.append(f": {tool.description}\n  {json.dumps(tool.parameters, ensure_ascii=False)}")
    return drawn
