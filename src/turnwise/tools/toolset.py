"""Several tools under distinct names, and the calls of one turn run side by side.

Invariant: `run_calls` gives one ToolResult per call, in the order of the calls, whatever the model wrote.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from turnwise.errors import ToolError
from turnwise.spelling import suggest
from turnwise.tools.tool import Tool, refuse
from turnwise.types import Task, ToolCall, ToolResult

_MAX_REFUSAL_CHARS = 1000
_MAX_NAME_CHARS = 64


class OpenToolset(Protocol):
    """The tools of a `Toolset`, opened for one episode."""

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Facts of the episode that are worth a curve, by name."""

    async def close(self) -> None:
        """Frees what was taken for the episode; called once."""


class Toolset(ABC):
    """Tools that come from elsewhere, such as a server: known before any episode, and opened for each."""

    @property
    @abstractmethod
    def tools(self) -> tuple[Tool, ...]:
        """The tools as they are known before an episode."""

    @abstractmethod
    async def open(self, task: Task, episode_seed: int) -> OpenToolset:
        """The tools for one episode; an InfrastructureError where they cannot be had."""


def index_tools(tools: Sequence[Tool]) -> dict[str, Tool]:
    """The tools by name; a ToolError for two of one name, or for a method without its object."""
    by_name: dict[str, Tool] = {}
    for item in tools:
        if not isinstance(item, Tool):
            raise ToolError(f"{item!r} is not a tool; put @tool above the function")
        if item.unbound:
            raise ToolError(f"tool '{item.spec.name}' is a method without its object; pass it from an instance")
        if item.spec.name in by_name:
            raise ToolError(f"two tools are named '{item.spec.name}'; rename one with @tool(name=...)")
        by_name[item.spec.name] = item
    return by_name


async def run_calls(tools: Sequence[Tool], calls: Sequence[ToolCall]) -> list[ToolResult]:
    """Runs the calls of one turn concurrently, those of one `EpisodeThread` in order; a call that cannot be made gets
    an error message as its result."""
    by_name = index_tools(tools)
    if len(calls) == 1:  # as most turns have it: no task of its own
        return [await _run_call(by_name, calls[0])]
    # All are waited for, so that none runs on beside what comes next when another's thread is lost.
    results = await asyncio.gather(*(_run_call(by_name, call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[ToolResult], results)


async def _run_call(tools: Mapping[str, Tool], call: ToolCall) -> ToolResult:
    if call.problem:
        return refuse(f"the tool call could not be read: {call.problem}", _MAX_REFUSAL_CHARS)
    if call.name not in tools:
        name = call.name[:_MAX_NAME_CHARS]
        offer = f"The tools are: {', '.join(tools)}" if tools else "There are no tools: answer directly"
        return refuse(f"there is no tool '{name}'{suggest(name, tools)}. {offer}.", _MAX_REFUSAL_CHARS)
    return await tools[call.name].call(call.arguments)
