"""Which tools of a server a model is offered, and under which names.

Invariant: the server's descriptions and schemas are passed on as they are; a schema is compiled once per list.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

from turnwise.errors import ToolError
from turnwise.tools.mcp.arguments import SchemaArguments
from turnwise.tools.mcp.server import CallAnswer, ListedTool
from turnwise.tools.tool import Tool
from turnwise.types import Json, ToolResult, ToolSpec

_NAME_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME: Final = 64

ServerCall: TypeAlias = Callable[[str, Mapping[str, Json]], Awaitable[CallAnswer]]
"""Calls a tool by the server's own name for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerTool(Tool):
    """A tool behind a server, which keeps its deadline itself, to tell a slow tool from a lost server."""

    async def _run(self, values: Mapping[str, object]) -> object:
        return await cast(Callable[..., Awaitable[object]], self.function)(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool of the server, ready to be made for an episode."""

    listed: ListedTool
    spec: ToolSpec
    arguments: SchemaArguments

    def make(self, call: ServerCall, *, timeout: float, max_chars: int) -> Tool:
        """The tool whose calls go by `call`."""

        async def function(**arguments: object) -> ToolResult:
            answer = await call(self.listed.name, cast(Mapping[str, Json], arguments))
            return ToolResult(content=answer.text, ok=answer.ok, rewards=answer.rewards)

        return ServerTool(
            function=function,
            spec=self.spec,
            parameters=self.arguments,
            timeout=timeout,
            max_chars=max_chars,
            quick=False,
            unbound=False,
        )


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """`catalogue.make_tools(listed, call)`; the last list is kept compiled, as most servers have but one."""

    server: str
    only: Collection[str] | None
    hidden: Collection[str]
    prefix: str
    timeout: float
    max_chars: int
    listed: list[ListedTool] = field(default_factory=list)
    _offers: tuple[Offer, ...] = ()

    def make_tools(self, listed: list[ListedTool], call: ServerCall) -> tuple[Tool, ...]:
        """The tools that a model is offered of a list."""
        if listed != self.listed:
            self._offers, self.listed = self._read(listed), listed
        return tuple(offer.make(call, timeout=self.timeout, max_chars=self.max_chars) for offer in self._offers)

    def find(self, listed: Sequence[ListedTool], name: str) -> ListedTool:
        """A tool by the server's own name for it."""
        found = next((one for one in listed if one.name == name), None)
        if found is None:
            names = ", ".join(one.name for one in listed) or "none"
            raise ToolError(f"MCPTools: {self.server} has no tool '{name}'; its tools are: {names}")
        return found

    def _read(self, listed: Sequence[ListedTool]) -> tuple[Offer, ...]:
        for name in (*(self.only or ()), *self.hidden):
            self.find(listed, name)
        offered = {one.name for one in listed} if self.only is None else set(self.only)
        shown = [one for one in listed if one.name in offered.difference(self.hidden)]
        names = Counter(self._spell(one.name) for one in shown)
        if not names:
            raise ToolError(f"MCPTools: {self.server} offers no tools")
        for name, count in names.items():
            if count > 1:
                raise ToolError(f"MCPTools: {count} tools of {self.server} are spelled '{name}'; choose by only=")
        return tuple(self._offer(one) for one in shown)

    def _offer(self, listed: ListedTool) -> Offer:
        name = self._spell(listed.name)
        spec = ToolSpec(name=name, description=listed.description, parameters=listed.schema)
        return Offer(listed=listed, spec=spec, arguments=SchemaArguments(name, listed.schema))

    def _spell(self, name: str) -> str:
        """The name that the model calls, in letters that every chat API takes."""
        return _NAME_CHARS.sub("_", f"{self.prefix}{name}")[:_LONGEST_NAME]
