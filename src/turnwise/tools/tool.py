"""`@tool`: a typed, documented Python function becomes something a model can call.

Invariant: `Tool.call` answers every call with a ToolResult. Bad JSON, wrong arguments, an exception or a timeout
becomes text that the model reads. Two things are raised: the cancellation of the caller itself, and the loss of what
the tool needs (its server, the thread of its episode), after which the episode cannot go on.
"""

import asyncio
import dataclasses
import functools
import inspect
import json
import math
import re
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol, Self, cast, overload

from pydantic_core import to_jsonable_python

from turnwise.errors import ToolError
from turnwise.tools.call_log import record_call
from turnwise.tools.docstring import read_docstring
from turnwise.tools.episode_thread import EpisodeThread
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.tools.parameters import ArgumentReader, BadArgumentsError, Parameter, Parameters, read_parameters
from turnwise.tools.running import TimedOutError, being_cancelled, run_in_loop, run_in_thread
from turnwise.tools.watchdog import calls_foreign_code, playing
from turnwise.types import ToolResult, ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A function the model may call; on a method, each instance of the class has a tool of its own."""

    function: Callable[..., object]
    spec: ToolSpec
    """Name, description and JSON schema, as the model sees them."""
    parameters: ArgumentReader
    timeout: float
    """Seconds until a call times out."""
    max_chars: int
    """Longer output is cut, with a note."""
    quick: bool
    """Pure and fast: runs inline on the event loop, in the order of the calls, without a thread."""
    unbound: bool
    """True for a method looked up on its class, which has no `self` to run with."""
    thread: EpisodeThread | None = None
    """Where a sync method runs, in order: the thread of its episode; None: quick ones inline, others in new threads."""

    def __get__(self, instance: object | None, owner: type | None = None) -> Self:
        if instance is None or not self.unbound:
            return self
        return dataclasses.replace(self, function=functools.partial(self.function, instance), unbound=False)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """The plain function, for Python callers and tests."""
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    async def call(self, arguments: str) -> ToolResult:
        """Runs the function on the JSON object the model wrote: `await search.call('{"query": "Oslo"}')`."""
        try:
            result = await self._invoke(self.parameters.read(arguments))
        except (InfrastructureError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the boundary: whatever a tool raises becomes text
            if isinstance(error, asyncio.CancelledError) and being_cancelled():
                raise
            return self._explain(error)
        if result.ok:
            record_call(self.spec.name, None)
        return result

    async def _invoke(self, values: Mapping[str, object]) -> ToolResult:
        return present(await self._run(values), self.max_chars)

    async def _run(self, values: Mapping[str, object]) -> object:
        task = playing.get()  # noqa: F841 - read by the watchdog
        if self.is_async:
            return await run_in_loop(cast(Coroutine[object, object, object], self.function(**values)), self.timeout)
        if self.quick and self.thread is None:
            return self.function(**values)
        work, what = functools.partial(self.function, **values), f"tool '{self.spec.name}'"
        if self.thread is None:
            return await run_in_thread(work, self.timeout, what=what)
        return await self.thread.run(work, what=what, seconds=self.timeout)

    def _explain(self, error: BaseException) -> ToolResult:
        name = self.spec.name
        if isinstance(error, BadArgumentsError):
            words = f"{name} was not called: {error}"
        elif isinstance(error, TimedOutError):
            words = (
                f"{name} gave no answer within {self.timeout:g} seconds and was stopped; ask for less or go on without"
            )
        else:
            record_call(name, error)
            words = f"{name} failed: {''.join(traceback.format_exception_only(error)).strip()}"
        return refuse(words, self.max_chars)


def _describe(local: Mapping[str, object]) -> str:
    task = f" of task '{local['task']}'" if local.get("task") else ""
    return f"tool '{cast(Tool, local['self']).spec.name}'{task}"


calls_foreign_code(Tool._run, _describe)


class ToolDecorator(Protocol):
    """What `@tool(...)` with options returns."""

    def __call__(self, function: Callable[..., object], /) -> Tool: ...


@overload
def tool(function: Callable[..., object], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, timeout: float = 30.0, max_chars: int = 4000, quick: bool = False
) -> ToolDecorator: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float = 30.0,
    max_chars: int = 4000,
    quick: bool = False,
) -> Tool | ToolDecorator:
    """Turns a typed function or method, sync or async, into a `Tool`; the model reads its docstring.

        @tool
        def lookup(city: str, year: int = 2024) -> str:
            '''Looks up the population of a city.

            Args:
                city: Its English name.
            '''

    Args:
        name: What the model calls it; the function's own name by default.
        timeout: Seconds until a call times out. Quick tools that run inline have no timeout.
        max_chars: Longer output is cut, with a note.
        quick: For a fast function that never waits: it runs inline, in order, without a thread. A method of an
            environment that has slower sync code, too, runs in the episode's thread all the same.
    """

    def decorate(function: Callable[..., object], /) -> Tool:
        called, description, parameters = read_function(function, name)
        check_limits(called, timeout, max_chars)
        if quick and inspect.iscoroutinefunction(function):
            raise ToolError(f"tool '{called}' is async; quick=True is for plain functions: leave it out")
        read = Parameters(called, parameters)
        return Tool(
            function=function,
            spec=ToolSpec(name=called, description=description, parameters=read.schema),
            parameters=read,
            timeout=timeout,
            max_chars=max_chars,
            quick=quick,
            unbound=is_method(function),
        )

    return decorate if function is None else decorate(function)


def read_function(function: Callable[..., object], name: str | None) -> tuple[str, str, tuple[Parameter, ...]]:
    """The name, description and parameters of a function; a ToolError where it cannot be a tool."""
    called = name or str(getattr(function, "__name__", type(function).__name__))
    if not _NAME.fullmatch(called):
        raise ToolError(f"'{called}' cannot name a tool: use 1 to 64 letters, digits, _ or -, by `name=...`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolError(f"tool '{called}' is a generator; return its results as a list")
    docstring = read_docstring(inspect.getdoc(function) or "")
    if not docstring.description:
        raise ToolError(f"tool '{called}' has no docstring; say in a sentence what it does, for the model to read")
    return called, docstring.description, read_parameters(function, called, docstring.parameters)


def is_method(function: Callable[..., object]) -> bool:
    """Whether the function's first parameter is an unannotated `self`."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and first.name == "self" and first.annotation is first.empty


def check_limits(name: str, timeout: float, max_chars: int) -> None:
    """Refuses limits under which no call could succeed."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise ToolError(f"tool '{name}': timeout is {timeout}; give a positive number of seconds")
    if max_chars < 1:
        raise ToolError(f"tool '{name}': max_chars is {max_chars}; give at least 1")


def present(returned: object, max_chars: int) -> ToolResult:
    """What a function returned, as the model reads it: text as it is, anything else as JSON."""
    if isinstance(returned, ToolResult):
        return dataclasses.replace(returned, content=legible(returned.content, max_chars))
    if returned is None:
        content = ""
    elif isinstance(returned, str):
        content = returned
    else:
        content = json.dumps(to_jsonable_python(returned), ensure_ascii=False)
    return ToolResult(content=legible(content, max_chars))


def refuse(message: str, max_chars: int) -> ToolResult:
    """The result of a call that could not be made or failed."""
    return ToolResult(content=legible(message, max_chars), ok=False)


def legible(content: str, max_chars: int) -> str:
    """Text that any tokenizer can read, never empty, cut at `max_chars` with a note."""
    content = encodable(content) or "(no output)"
    if len(content) <= max_chars:
        return content
    return f"{content[:max_chars]}\n[cut: {len(content) - max_chars} of {len(content)} characters are not shown]"


def encodable(text: str) -> str:
    """The text with `?` for each lone surrogate, such as JSON's "\\ud83d", on which tokenizers fail."""
    return text.encode("utf-8", "replace").decode("utf-8")
