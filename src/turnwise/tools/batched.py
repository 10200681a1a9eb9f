"""`@batched_tool`: a function over lists, for backends that answer many queries as fast as one.

Invariant: calls made in the same tick of the event loop, by any episode, share one invocation, yet each is
validated, answered and cancelled on its own.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args, get_origin

from turnwise.errors import ToolError
from turnwise.tools.batching import TickBatcher
from turnwise.tools.parameters import Parameter, Parameters
from turnwise.tools.tool import Tool, check_limits, is_method, present, read_function
from turnwise.types import ToolResult, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchedTool(Tool):
    """A tool whose function takes a list for each parameter and returns one result per call."""

    max_batch: int
    """The most calls that share one invocation; more make several, side by side."""
    _batcher: TickBatcher[Mapping[str, object], ToolResult] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_batcher", TickBatcher(self._answer, max_batch=self.max_batch))

    async def _invoke(self, values: Mapping[str, object]) -> ToolResult:
        return await self._batcher.submit(values)

    async def _answer(self, batch: Sequence[Mapping[str, object]]) -> list[ToolResult]:
        columns = {name: [values[name] for values in batch] for name in self.parameters.names}
        return self._split(await self._run(columns), len(batch))

    def _split(self, returned: object, calls: int) -> list[ToolResult]:
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            raise TypeError(f"a batched tool must return a list, one result per call, not {type(returned).__name__}")
        if len(returned) != calls:
            raise ValueError(f"the tool returned {len(returned)} results for {calls} calls, so none can be trusted")
        return [self._present(result) for result in returned]

    def _present(self, returned: object) -> ToolResult:
        try:
            return present(returned, self.max_chars)
        except Exception as error:  # noqa: BLE001 - one result that JSON cannot carry must not spoil the others
            return self._explain(error)


def batched_tool(
    *,
    max_batch: int = 64,
    name: str | None = None,
    timeout: float = 30.0,
    max_chars: int = 4000,
    quick: bool = False,
) -> Callable[[Callable[..., object]], BatchedTool]:
    """Turns a function over lists into a tool over their elements.

        @batched_tool(max_batch=32)
        def search(query: list[str]) -> list[str]:
            '''Finds passages.'''

    The model sees `search(query: string)`; `timeout` is that of one invocation.
    """
    if max_batch < 1:
        raise ToolError(f"max_batch is {max_batch}; give at least 1")

    def decorate(function: Callable[..., object]) -> BatchedTool:
        called, description, parameters = read_function(function, name)
        check_limits(called, timeout, max_chars)
        if is_method(function):
            raise ToolError(
                f"tool '{called}': a batched tool serves many episodes at once, so it cannot be a method with "
                "`self`; write a function, or use @tool"
            )
        if quick and inspect.iscoroutinefunction(function):
            raise ToolError(f"tool '{called}' is async; quick=True is for plain functions: leave it out")
        read = Parameters(called, tuple(_element(called, parameter) for parameter in parameters))
        return BatchedTool(
            function=function,
            spec=ToolSpec(name=called, description=description, parameters=read.schema),
            parameters=read,
            timeout=timeout,
            max_chars=max_chars,
            quick=quick,
            unbound=False,
            max_batch=max_batch,
        )

    return decorate


def _element(tool: str, parameter: Parameter) -> Parameter:
    arguments = get_args(parameter.annotation)
    if get_origin(parameter.annotation) not in (list, Sequence) or len(arguments) != 1:
        raise ToolError(f"batched tool '{tool}': parameter '{parameter.name}' must be a list, e.g. list[str]")
    if parameter.default is not inspect.Parameter.empty:
        raise ToolError(f"batched tool '{tool}': parameter '{parameter.name}' cannot have a default; remove it")
    return dataclasses.replace(parameter, annotation=arguments[0])
