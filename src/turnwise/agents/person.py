"""A person plays an environment: reads what the agent would read, writes what the agent would write.

Invariant: a person's text goes the way a model's does (`parse_text`, then `Env.step`), so whatever the
environment answers here, it answers in training; shorthand only saves typing.
"""

import asyncio
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from rich.console import Console, RenderableType
from rich.text import Text

from turnwise.envs.base import Env
from turnwise.envs.games.game import TextGame
from turnwise.errors import EnvError
from turnwise.render.formats import format_call, parse_text
from turnwise.types import Json, Message, Step, Task, ToolSpec

Ask: TypeAlias = Callable[[], str]
"""Waits for one line; EOFError or KeyboardInterrupt means that the person is leaving."""
Show: TypeAlias = Callable[[RenderableType], None]

_COMMANDS: Final = """Write what the assistant says, on one line, or:
  /call NAME key=value key="two words"   call a tool
  /call NAME {"key": "value"}            the same, with the arguments as JSON
  /help                                  this, and the tools
  /quit                                  leave"""


async def play(env: Env, task: Task, episode_seed: int, ask: Ask, show: Show) -> float:
    """Plays one episode of `task` and returns the reward that was paid, all of it."""
    player = env.spawn()
    paid: dict[str, float] = {}
    try:
        for opening in await player.reset(task, episode_seed):
            show(_draw(opening))
        show(_draw_help(player))
        while (move := _next_move(ask, show, player)) is not None:
            step = await player.step(move)
            for name, value in step.rewards.items():
                paid[name] = paid.get(name, 0.0) + value
            _show_step(step, show)
            if step.done:
                break
    finally:
        await player.close()
    reward = math.fsum(paid.values())
    show(Text(f"Reward {reward:g}{_list_channels(paid, ' (', ')')}", style="bold"))
    return reward


def play_in_terminal(env: Env, task_index: int = 0, split: str = "train", episode_seed: int = 0) -> float:
    """Plays one task of a split in this terminal: `play_in_terminal(env, task_index=3, split="test")`."""
    tasks = env.tasks(split)
    if not 0 <= task_index < len(tasks):
        raise EnvError(f"no task {task_index} in '{split}': it has {len(tasks)}, counted from 0")
    console = Console(highlight=False)
    task = tasks[task_index]
    console.print(Text(f"Task {task.id}, episode seed {episode_seed}", style="bold"))
    return asyncio.run(play(env, task, episode_seed, lambda: console.input("> "), console.print))


def _next_move(ask: Ask, show: Show, env: Env) -> Message | None:
    """The person's next message, or None when the person leaves."""
    while True:
        try:
            line = ask().strip()
        except (EOFError, KeyboardInterrupt):
            return None
        command, _, rest = line.partition(" ")
        if command == "/quit":
            return None
        if command == "/help":
            show(_draw_help(env))
        elif line:
            try:
                text = _expand_call(rest, env.tools) if command == "/call" else _expand_answer(line, env)
            except ValueError as error:
                show(Text(f"/call: {error}", style="red"))
                continue
            if text != line:
                show(Text(text, style="bold"))
            return parse_text(text)


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


def _show_step(step: Step, show: Show) -> None:
    if step.rewrites is not None:
        show(Text("The conversation now reads:", style="italic"))
    for message in step.messages if step.rewrites is None else step.rewrites:
        show(_draw(message))
    if step.rewards:
        show(Text(_list_channels(step.rewards, "reward: ", ""), style="green"))
    if step.done:
        show(Text(f"The episode is over.{_list_channels(step.metrics, ' ', '')}", style="bold"))


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


def _list_channels(values: Mapping[str, float], before: str, after: str) -> str:
    listed = ", ".join(f"{name} {value:g}" for name, value in values.items())
    return f"{before}{listed}{after}" if listed else ""
