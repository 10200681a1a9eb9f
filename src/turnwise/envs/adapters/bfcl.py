"""BFCL's multi-turn tasks: a user with several requests, tools as JSON schemas, the benchmark's own checker at the end.

Invariant: a message without calls ends the user's request, and the last one ends the episode, which pays 1 where BFCL's
checker passes it. A scenario is in one split alone, in all its categories. It is a benchmark: what was trained on its
tasks cannot be measured on them.
"""

import ast
import importlib.util
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias, cast

from turnwise.envs.adapters.child import ChildLostError, Children, ChildTimeoutError, ForeignError
from turnwise.envs.base import Env
from turnwise.envs.games.game import SPLITS, check_count
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.tools.episode_thread import EpisodeThread, Paces
from turnwise.types import Json, Message, Step, Task, ToolCall, ToolSpec

Call: TypeAlias = tuple[str, Mapping[str, Json]]

_SERVER = "turnwise.envs.adapters.worlds.bfcl:BfclServer"
_NO_DEPS = "pip install --no-deps bfcl-eval"
"""It asks for the clients of many model providers; its multi-turn half needs none of them."""
_TEST_SHARE = 5
_MOST_QUOTED = 40
_numbers = itertools.count()


@dataclass(slots=True, kw_only=True)
class _Dialogue:
    """One episode: what the user asks, and what was called so far, by turn and step."""

    task: str
    name: str
    asked: list[str]
    truth: list[list[str]]
    tools: tuple[ToolSpec, ...]
    known: dict[str, ToolSpec]
    """Every function of the task, with those that a later turn adds."""
    turn: int = 0
    done_here: list[list[Call]] = field(default_factory=list)
    """The steps of the present turn that ran something."""
    steps: int = 0
    past: list[list[list[Call]]] = field(default_factory=list)
    calls: int = 0
    errors: int = 0
    done: bool = False


class Bfcl(Env):
    """`Bfcl(categories=["base"], classes=["GorillaFileSystem", "MathAPI"])`."""

    def __init__(
        self,
        *,
        categories: Sequence[str] = ("base",),
        classes: Sequence[str] | None = None,
        max_steps: int = 20,
        partial: float = 0.0,
        system: str = "",
        seconds: float = 30.0,
        processes: int = 1,
    ) -> None:
        """Reads the tasks in a child process.

        Args:
            categories: `base`, `miss_func` (a function is offered late, in a message of the user), `miss_param` (the
                user leaves something out, and says it late) or `long_context`.
            classes: Only tasks whose functions are all of these classes, such as `GorillaFileSystem`; all by default.
            max_steps: Messages with calls that one request of the user may take; BFCL's limit, at which an episode has
                failed.
            partial: What an episode that does not pass is paid, times the share of requests that BFCL's checker passes
                before the first that it does not.
            system: The system message, if any; BFCL has none for models that call functions.
            seconds: What the calls of a message, or the checker, may take before they are killed.
            processes: How many processes run the functions, side by side.
        """
        if importlib.util.find_spec("bfcl_eval") is None:
            raise EnvError(f"BFCL is not installed; pip install 'turnwise[bfcl]' && {_NO_DEPS}")
        check_count("max_steps", max_steps)
        if not 0.0 <= partial <= 1.0:
            raise EnvError(f"partial: {partial} is not between 0 and 1; an episode that passes is paid 1")
        self._max_steps, self._partial, self._system = max_steps, partial, system
        self._children = Children(_SERVER, {"categories": list(categories)}, count=processes, seconds=seconds)
        self._paces = Paces()
        self._dialogue: _Dialogue | None = None
        try:
            index = cast(list[dict[str, Json]], self._children.assign().call("index"))
        except ForeignError as error:
            raise EnvError(f"BFCL cannot be played so: {error}") from None
        known = {name for one in index for name in cast(list[str], one["classes"])}
        if unknown := sorted(set(classes or ()) - known):
            raise EnvError(f"there is no class '{unknown[0]}'; there are: {', '.join(sorted(known))}")
        chosen = [one for one in index if set(cast(list[str], one["classes"])) <= (set(classes or known))]
        self._classes = sorted({name for one in chosen for name in cast(list[str], one["classes"])})
        self._tasks = _split([cast(str, one["id"]) for one in chosen])
        self._offered = _specs(self._children.assign().call("documents", list(self._classes)))

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The functions of the episode's task; before an episode, those of all classes."""
        return self._offered if self._dialogue is None else self._dialogue.tools

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._tasks:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(SPLITS)}")
        return self._tasks[split]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._thread, self._child = EpisodeThread(self._paces), self._children.assign()
        name = f"m{os.getpid()}n{next(_numbers)}"
        wanted = cast(str, task.data["task"])
        told = cast(
            dict[str, Json],
            await self._thread.run(lambda: self._child.call("describe", wanted), what="describe", seconds=None),
        )
        self._dialogue = _Dialogue(
            task=wanted,
            name=name,
            asked=cast(list[str], told["turns"]),
            truth=cast(list[list[str]], told["truth"]),
            tools=_specs(told["tools"]),
            known={spec.name: spec for spec in _specs(told["all_tools"])},
        )
        self._generation: int | None = None
        first = Message(role="user", content=self._dialogue.asked[0])
        return (Message(role="system", content=self._system), first) if self._system else (first,)

    async def step(self, message: Message) -> Step:
        dialogue = self._live()
        if message.tool_calls:
            return await self._answer_calls(dialogue, message)
        dialogue.past.append(dialogue.done_here)
        dialogue.done_here, dialogue.steps = [], 0
        dialogue.turn += 1
        if dialogue.turn == len(dialogue.asked):
            return await self._finish(dialogue)
        asked = Message(role="user", content=dialogue.asked[dialogue.turn])
        return Step(messages=(asked,), metrics=_counts(dialogue))

    @property
    def has_deadline(self) -> bool:
        """Each call has one in its process; the wait for a turn there, behind other episodes, is no hang."""
        return True

    async def close(self) -> None:
        dialogue, self._dialogue = self._dialogue, None
        if dialogue is not None and self._generation is not None:
            try:
                await self._thread.run(
                    lambda: self._child.call("close", dialogue.name, generation=self._generation),
                    what="close",
                    seconds=None,
                )
            except (ChildLostError, ForeignError):
                return

    def state_key(self) -> str | None:
        """Names the task and all that was called, by turn."""
        dialogue = self._dialogue
        if dialogue is None:
            return None
        past = json.dumps([dialogue.past, dialogue.done_here, dialogue.turn])
        return f"{dialogue.task}-{derive_seed(past):x}"

    def expert(self) -> Message:
        """The next call of the ground truth, or the end of a request of the user."""
        dialogue = self._live()
        wanted = dialogue.truth[dialogue.turn]
        made = sum(len(step) for step in dialogue.done_here)
        if made >= len(wanted):
            return Message(role="assistant", content="Done." if wanted else "I cannot do that yet.")
        # One a message, so that each answer is read before the next call, unless the limit of steps forbids it.
        several = math.ceil((len(wanted) - made) / max(1, self._max_steps - 1 - dialogue.steps))
        calls = [_read_call(text, dialogue.known) for text in wanted[made : made + several]]
        return Message(
            role="assistant",
            content="",
            tool_calls=tuple(
                ToolCall(id=f"call-{dialogue.turn}-{made + place}", name=name, arguments=json.dumps(arguments))
                for place, (name, arguments) in enumerate(calls)
            ),
        )

    def spawn(self) -> Self:
        twin = super().spawn()
        twin._dialogue = None
        return twin

    def _live(self) -> _Dialogue:
        if self._dialogue is None or self._dialogue.done:
            raise EnvError("Bfcl was stepped before reset or after the episode was done; call reset first")
        return self._dialogue

    async def _answer_calls(self, dialogue: _Dialogue, message: Message) -> Step:
        read = [_parse(call, dialogue.known) for call in message.tool_calls]
        good = [call for call in read if not isinstance(call, str)]
        try:
            ran = (
                await self._thread.run(lambda: self._execute(dialogue, good), what="execute", seconds=None)
                if good
                else []
            )
        except ChildTimeoutError:
            # The model chose what to compute: it reads that this took too long, and the episode goes on without it.
            ran, self._generation = ["Error during execution: it took too long"] * len(good), None
        else:
            dialogue.done_here += [good] if good else []
        results = iter(ran)
        told = [call if isinstance(call, str) else next(results) for call in read]
        dialogue.calls += len(read)
        dialogue.errors += sum(isinstance(call, str) for call in read)
        dialogue.errors += sum(result.startswith("Error during execution") for result in ran)
        replies = tuple(
            Message(role="tool", content=text, tool_call_id=call.id, name=_name_of(call, dialogue.known))
            for call, text in zip(message.tool_calls, told, strict=True)
        )
        dialogue.steps += 1
        if dialogue.steps >= self._max_steps:
            return await self._finish(dialogue, replies)
        return Step(messages=replies, metrics=_counts(dialogue))

    async def _finish(self, dialogue: _Dialogue, replies: Sequence[Message] = ()) -> Step:
        """The end: after the last request, or within one that took too many steps, which is not passed."""
        dialogue.done = True
        past = cast(Json, dialogue.past)
        count, self._generation = await self._thread.run(
            lambda: self._child.open("check", dialogue.name, dialogue.task, past), what="check", seconds=None
        )
        share = cast(int, count) / len(dialogue.asked)
        passed = float(share == 1.0)
        rewards = {"checker": passed}
        if self._partial:
            rewards["requests"] = self._partial * share * (1.0 - passed)
        metrics = _counts(dialogue) | {"passed_requests": share, "success": passed}
        return Step(messages=tuple(replies), rewards=rewards, done=True, metrics=metrics)

    def _execute(self, dialogue: _Dialogue, calls: Sequence[Call]) -> list[str]:
        """Runs the calls of one message; where the process that held the episode is gone, its past first."""
        ask = ("execute", dialogue.name, dialogue.task)
        if self._generation is not None:
            try:
                return cast(list[str], self._child.call(*ask, cast(Json, calls), generation=self._generation))
            except ChildTimeoutError:
                raise
            except ChildLostError:
                self._generation = None
        for step in (*itertools.chain(*dialogue.past), *dialogue.done_here, calls):
            results, self._generation = self._child.open(*ask, cast(Json, step))
        return cast(list[str], results)


def _split(names: Sequence[str]) -> dict[str, list[Task]]:
    """A fifth of the scenarios to test on; a scenario has the same number in every category."""
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    for name in names:
        scenario = name.rpartition("_")[2]
        split = "test" if derive_seed("bfcl", scenario) % _TEST_SHARE == 0 else "train"
        tasks[split].append(Task(id=name, seed=int(scenario), data={"task": name}))
    return tasks


def _specs(documents: Json) -> tuple[ToolSpec, ...]:
    listed = cast(list[dict[str, Json]], documents)
    return tuple(ToolSpec(**one) for one in listed)  # type: ignore[arg-type]  # as the child's side wrote them


def _parse(call: ToolCall, known: Mapping[str, ToolSpec]) -> Call | str:
    """The function and its arguments; where there are none, what is wrong, in words for the model."""
    if call.problem:
        return f"Error: {call.problem}"
    if call.name not in known:
        return f"Error: there is no function '{call.name[:_MOST_QUOTED]}'"
    try:
        arguments = json.loads(call.arguments)
    except ValueError as error:
        return f"Error: the arguments are not JSON: {error}"
    if not isinstance(arguments, dict):
        return "Error: the arguments are not a JSON object"
    for key in arguments:
        if not key.isidentifier():
            return f"Error: {call.name} has no argument '{key[:_MOST_QUOTED]}'"
    return call.name, arguments


def _read_call(text: str, known: Mapping[str, ToolSpec]) -> Call:
    """`sort('report.pdf')` as a name and arguments by name."""
    read = ast.parse(text, mode="eval").body
    assert isinstance(read, ast.Call), "the ground truth is made of calls"
    assert isinstance(read.func, ast.Name), "of plain functions"
    properties = cast(Mapping[str, Json], known[read.func.id].parameters["properties"])
    given = {name: ast.literal_eval(value) for name, value in zip(properties, read.args, strict=False)}
    given |= {one.arg: ast.literal_eval(one.value) for one in read.keywords if one.arg is not None}
    return read.func.id, given


def _name_of(call: ToolCall, known: Mapping[str, ToolSpec]) -> str | None:
    return call.name if call.name in known else None


def _counts(dialogue: _Dialogue) -> dict[str, float]:
    counts = {"tool_calls": dialogue.calls, "tool_errors": dialogue.errors, "requests": dialogue.turn}
    return {name: float(count) for name, count in counts.items()}
