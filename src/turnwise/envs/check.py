"""`check_env`: an environment's contract, executed; every environment of ours passes it in the test suite.

Invariant: it checks an environment by its behaviour alone, messages in and steps out, and reports every broken
promise in a sentence instead of raising.
"""

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pydantic_core import PydanticSerializationError

from turnwise.envs.base import Env, close_env
from turnwise.envs.boundary import explain
from turnwise.envs.probes import final_message, hostile_messages, sample_call
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.tools.call_log import always_raised, recording_calls
from turnwise.tools.episode_thread import LostThreadError
from turnwise.tools.running import TimedOutError, naming_slow_calls, run_in_loop
from turnwise.tools.watchdog import calls_foreign_code, playing, watching
from turnwise.types import Message, Step, Task

T = TypeVar("T")

_MAX_EXPERT_TURNS = 200
_SECONDS = 120.0
_WORD_AFTER = 5.0
"""Seconds after which a tool or reward that has not returned is named in the log."""
_SHOWN_CHARS = 200
"""Of each of two texts that differ."""
_WHATEVER_ARGUMENTS = (NameError, ImportError, PydanticSerializationError)
"""What a tool raises by a mistake of its own; anything else may be its answer to arguments that mean nothing."""


class _BrokenError(Exception):
    """A promise that was not kept, as a finding."""


class _HangError(_BrokenError):
    """A call that did not return: what it holds is in use, so nothing more is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """Everything an episode showed: what must be equal when it is played again."""

    opening: tuple[Message, ...]
    steps: tuple[Step, ...]
    keys: tuple[str | None, ...]
    """The state key before each move, and after the last unless the episode was done."""


async def check_env(env: Env, tasks: Sequence[Task] | None = None, episodes: int = 3) -> list[str]:
    """The promises of the contract that `env` breaks, one sentence each; an empty list means it passes.

    Plays the first `episodes` of `tasks`, by default those of the train and test splits.
    """
    findings: list[str] = []
    chosen = list(tasks[:episodes]) if tasks is not None else _first_tasks(env, episodes, findings)
    if not chosen:
        return [*findings, "there is no task to play"]
    with watching(), naming_slow_calls(_WORD_AFTER):
        try:
            await _check_all(env, chosen, findings)
        except _HangError as hang:
            findings += [str(hang), "nothing more was checked after a call that hangs"]
    return list(dict.fromkeys(findings))


async def _check_all(env: Env, tasks: Sequence[Task], findings: list[str]) -> None:
    for task in tasks:
        playing.set(task.id)
        for check in (_check_opening, _check_hostile, _check_replay, _check_fork, _check_expert):
            try:
                await check(env, task)
            except _HangError as hang:
                raise _HangError(f"task '{task.id}': {hang}") from hang
            except _BrokenError as broken:
                findings.append(f"task '{task.id}': {broken}")
    try:
        await _check_interleaving(env, tasks)
    except _HangError:
        raise
    except _BrokenError as broken:
        findings.append(str(broken))
    findings += await find_broken_tools(env, tasks)


async def find_broken_tools(env: Env, tasks: Sequence[Task]) -> list[str]:
    """A sentence for each tool that raised in every call of the expert, or that fails whatever it is called with."""
    with recording_calls() as probed, contextlib.suppress(_BrokenError):
        for task, spec in itertools.product(tasks, env.tools):
            call = Message(role="assistant", content="", tool_calls=(sample_call(spec, "call-0"),))
            await _play(env, task, [call], f"a call of {spec.name}")
    with recording_calls() as expert, contextlib.suppress(_BrokenError):
        for task in tasks if env.has_expert and env.tools else ():
            await _expert_messages(env, task)
    broken = always_raised(expert)
    for tool, error in always_raised(probed).items():
        if tool not in expert and isinstance(error, _WHATEVER_ARGUMENTS):
            broken[tool] = error
    return [f"tool '{tool}' raised {explain(error)} in every call" for tool, error in broken.items()]


def _first_tasks(env: Env, episodes: int, findings: list[str]) -> list[Task]:
    chosen: list[Task] = []
    for split in ("train", "test"):
        try:
            listed = env.tasks(split)
            chosen += [listed[i] for i in range(min(episodes, len(listed)))]
            if not listed:
                findings.append(f"tasks('{split}') is empty")
        except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
            findings.append(f"tasks('{split}') raised {explain(error)}")
    return chosen


async def _check_opening(env: Env, task: Task) -> None:
    """The members of a group read the same opening, whatever their episode seed."""
    openings = [(await _play(env, task, [], "nothing", episode_seed)).opening for episode_seed in (0, 0, 1)]
    if openings[0] != openings[1]:
        raise _BrokenError(
            f"reset gives different messages for the same task and episode seed: {_both(openings[0], openings[1])}"
        )
    if openings[0] != openings[2]:
        raise _BrokenError("reset's messages depend on episode_seed: make the start from the task's seed alone")


async def _check_hostile(env: Env, task: Task) -> None:
    """Nothing a model can write raises, at the start or in the middle of an episode."""
    probes = hostile_messages(_try("tools", lambda: env.tools))
    for what, message in probes:
        await _play(env, task, [message], what)
    await _play(env, task, [message for _, message in probes], "a series of odd messages")


async def _check_replay(env: Env, task: Task) -> None:
    """The same task, episode seed and messages give the same episode."""
    for script in await _scripts(env, task):
        first, again = [await _play(env, task, script, "a scripted episode") for _ in range(2)]
        _compare(first, again, "played twice with the same episode seed and messages, the episode differs")


async def _check_interleaving(env: Env, tasks: Sequence[Task]) -> None:
    """Two episodes side by side leave each other alone."""
    episodes = [(task, script) for task in (tasks[0], tasks[-1]) for script in await _scripts(env, task)]
    alone = [await _play(env, task, script, "a scripted episode") for task, script in episodes]
    together = await asyncio.gather(
        *(_play(env, task, script, "an episode beside others") for task, script in episodes)
    )
    for one, other in zip(alone, together, strict=True):
        _compare(one, other, "episodes disturb each other: keep an episode's state out of what spawn() shares")


async def _check_fork(env: Env, task: Task) -> None:
    """A fork goes on as the original would have, and leaves the original alone."""
    if type(env).fork is Env.fork:
        return
    for script in await _scripts(env, task):
        await _fork_halfway(env, task, script)


async def _fork_halfway(env: Env, task: Task, script: Sequence[Message]) -> None:
    expected = await _play(env, task, script, "a scripted episode")
    half = len(expected.steps) // 2
    original = _try("spawn", env.spawn)
    opening = tuple(await _guard("reset", lambda: original.reset(task, _episode_seed(task))))
    start = await _go_on(original, opening, script[:half], "a scripted episode")
    for member in (_try("fork", original.fork), _try("fork", original.fork), original):
        rest = await _go_on(member, opening, script[half:], "a forked episode")
        record = _Record(opening=opening, steps=start.steps + rest.steps, keys=start.keys + rest.keys[1:])
        _compare(expected, record, "a fork and its original do not go on alike, or disturb each other")
        await _guard("close", partial(close_env, member))


async def _check_expert(env: Env, task: Task) -> None:
    """The expert's messages are well formed, and play the episode to its end."""
    if env.has_expert:
        await _expert_messages(env, task)


async def _expert_messages(env: Env, task: Task) -> list[Message]:
    player = _try("spawn", env.spawn)
    await _guard("reset", lambda: player.reset(task, _episode_seed(task)))
    messages: list[Message] = []
    for _ in range(_MAX_EXPERT_TURNS):
        messages.append(await _guard("expert", lambda: player.run_sync(player.expert)))
        _check_expert_message(player, messages[-1])
        if (await _step(player, messages[-1], "the expert's message")).done:
            await _guard("close", partial(close_env, player))
            return messages
    raise _BrokenError(f"the expert did not finish within {_MAX_EXPERT_TURNS} turns")


def _check_expert_message(env: Env, message: Message) -> None:
    if not isinstance(message, Message) or message.role != "assistant":
        raise _BrokenError(f"the expert gave {message!r}; return Message(role='assistant', ...)")
    names = [spec.name for spec in env.tools]
    for call in message.tool_calls:
        if call.name not in names:
            raise _BrokenError(f"the expert called '{call.name}', which is not among the tools: {', '.join(names)}")
        if call.problem or not _is_object(call.arguments):
            raise _BrokenError(f"the expert called {call.name} with '{call.arguments}', which is not a JSON object")


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False


async def _scripts(env: Env, task: Task) -> list[list[Message]]:
    """What to play: each tool, odd calls and final answers in a row; and the expert's own episode, if any."""
    tools = _try("tools", lambda: env.tools)
    calls = [sample_call(spec, f"call-{i}") for i, spec in enumerate(tools)]
    valid = [Message(role="assistant", content="", tool_calls=(call,)) for call in calls]
    odd = [message for _, message in hostile_messages(tools) if message.tool_calls]
    scripts = [[*valid, *odd, *[final_message()] * 3]]
    if env.has_expert:
        # A broken expert is `_check_expert`'s finding, not that of every check which plays it.
        with contextlib.suppress(_BrokenError):
            scripts.append(await _expert_messages(env, task))
    return scripts


async def _play(env: Env, task: Task, script: Sequence[Message], what: str, episode_seed: int | None = None) -> _Record:
    """Plays the script on a spawned episode, to its end or the episode's, and checks every step on the way."""
    player = _try("spawn", env.spawn)
    opening = tuple(
        await _guard("reset", lambda: player.reset(task, _episode_seed(task) if episode_seed is None else episode_seed))
    )
    if not opening:
        raise _BrokenError("reset gave no message to read")
    record = await _go_on(player, opening, script, what)
    await _guard("close", partial(close_env, player))
    return record


async def _go_on(player: Env, opening: tuple[Message, ...], script: Sequence[Message], what: str) -> _Record:
    steps: list[Step] = []
    keys = [await _state_key(player)]
    for message in script:
        # A pause, as sampling would make, lets an episode beside this one run in between.
        await asyncio.sleep(0)
        steps.append(await _step(player, message, what))
        if steps[-1].done:
            await _expect_refusal(player, message)
            break
        keys.append(await _state_key(player))
    return _Record(opening=opening, steps=tuple(steps), keys=tuple(keys))


async def _step(player: Env, message: Message, what: str) -> Step:
    step = await _guard(f"step on {what}", lambda: player.step(message))
    if not isinstance(step, Step):
        raise _BrokenError(f"step returned {type(step).__name__}, not a Step")
    for name, value in {**step.rewards, **step.metrics}.items():
        if not name or not math.isfinite(value):
            raise _BrokenError(f"reward or metric '{name}' is {value}; it needs a name and a finite value")
    return step


async def _expect_refusal(player: Env, message: Message) -> None:
    try:
        await run_in_loop(_call("step after done", playing.get(), lambda: player.step(message)), _SECONDS)
    except EnvError:
        return
    except Exception as error:
        raise _BrokenError(f"a step after done must raise EnvError, not {_words(error)}") from error
    raise _BrokenError("a step after done is answered; raise EnvError, or an answer can be paid twice")


async def _state_key(player: Env) -> str | None:
    key, again = [await _guard("state_key", lambda: player.run_sync(player.state_key)) for _ in range(2)]
    if key != again:
        raise _BrokenError(f"state_key() changes while the state does not: '{key}', then '{again}'")
    if key is not None and not (isinstance(key, str) and key):
        raise _BrokenError(f"state_key() is {key!r}; give a non-empty string, or None")
    return key


def _compare(expected: _Record, record: _Record, finding: str) -> None:
    if expected.opening != record.opening:
        raise _BrokenError(f"{finding} (first seen in reset): {_both(expected.opening, record.opening)}")
    for turn, (step, again) in enumerate(zip(expected.steps, record.steps, strict=False)):
        if step != again:
            raise _BrokenError(f"{finding} (first seen in turn {turn}): {_difference(step, again)}")
    if expected.keys != record.keys:
        raise _BrokenError(f"{finding} (first seen in state_key): {_both(expected.keys, record.keys)}")


def _difference(step: Step, again: Step) -> str:
    """What differs in two answers to the same message, both of them told."""
    for name in ("messages", "rewrites", "rewards", "done", "truncated", "metrics"):
        one, other = getattr(step, name), getattr(again, name)
        if one != other:
            return _both(one, other) if name == "messages" else f"{name} {_both(one, other)}"
    raise AssertionError("they differ in something")


def _both(one: object, other: object) -> str:
    """Both texts, from the first of several messages or keys that differs."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        pairs = itertools.zip_longest(one, other)
        one, other = next(((a, b) for a, b in pairs if a != b), (one, other))
    return f"{_text(one)} the first time, {_text(other)} the second"


def _text(value: object) -> str:
    shown = repr(value.content if isinstance(value, Message) else value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."


async def _guard(what: str, act: Callable[[], Awaitable[T]]) -> T:
    try:
        return await run_in_loop(_call(what, playing.get(), act), _SECONDS)
    except TimedOutError as error:
        raise _HangError(f"{what} took longer than {_SECONDS:g} seconds") from error
    except LostThreadError as error:
        raise _HangError(f"{what}: {error}") from error
    except Exception as error:
        raise _BrokenError(f"{what} raised {explain(error)}") from error


async def _call(what: str, task: str, act: Callable[[], Awaitable[T]]) -> T:
    return await act()


calls_foreign_code(_call, lambda local: f"{local['what']} of task '{local['task']}'")


def _try(what: str, act: Callable[[], T]) -> T:
    try:
        return act()
    except (Exception, SystemExit) as error:
        raise _BrokenError(f"{what} raised {explain(error)}") from error


def _episode_seed(task: Task) -> int:
    return derive_seed("check_env", task.id)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
