"""Where an MCP server is, and what is used of a connection to one.

Nothing here needs the package `mcp`: `client.py` alone does, and a test may connect to a server of its own making.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from turnwise.errors import ToolError
from turnwise.types import Json, Task

_LONGEST_VARIABLE = 100_000
"""Bytes; Linux takes 131072 for one environment variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPServer:
    """`MCPServer(command=("python", "server.py"))` or `MCPServer(url="http://localhost:8000/mcp")`."""

    command: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the command, beside the few that the MCP client passes on (PATH, HOME)."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers of every request to the URL."""
    cwd: str | None = None
    session: bool = False
    """Ask a server behind a URL for a session of its own, where it has sessions."""

    @property
    def name(self) -> str:
        return self.url or shlex.join(self.command)

    def for_episode(self, task: Task, episode_seed: int) -> "MCPServer":
        """The same server for one episode: a command finds its task in TURNWISE_TASK, as JSON."""
        if self.url:
            return replace(self, session=True)
        written = json.dumps({"id": task.id, "seed": task.seed, "data": task.data}, default=dict)
        if len(written.encode()) > _LONGEST_VARIABLE:
            raise ToolError(
                f"task '{task.id}' has {len(written)} characters, more than an environment variable takes: put a path "
                "into its data"
            )
        told = {"TURNWISE_TASK": written, "TURNWISE_EPISODE_SEED": str(episode_seed)}
        return replace(self, variables={**self.variables, **told})


def read_server(
    server: str | Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> MCPServer:
    """A server by its URL or its command; `python` stands for the interpreter that runs turnwise.

    `$NAME` in variables and headers is taken from the environment.
    """
    url = server if isinstance(server, str) and server.startswith(("http://", "https://")) else ""
    try:
        command = () if url else tuple(shlex.split(server) if isinstance(server, str) else server)
    except ValueError as error:
        raise ToolError(f"MCPTools: cannot read the command {server!r}: {error}") from None
    if command[:1] == ("python",):
        command = (sys.executable, *command[1:])
    if not url and not command:
        raise ToolError("MCPTools: give the command that starts a server, or its URL")
    if url and (variables or cwd):
        raise ToolError(f"MCPTools: variables and cwd are those of a command; {url} takes headers")
    if command and headers:
        raise ToolError(f"MCPTools: headers are those of a URL; {command[0]} takes variables")
    return MCPServer(command=command, url=url, variables=_expand(variables), headers=_expand(headers), cwd=cwd)


def _expand(given: Mapping[str, str] | None) -> dict[str, str]:
    """Values with `$NAME` filled in, so that a recipe holds no secret."""
    expanded = {name: os.path.expandvars(value) for name, value in (given or {}).items()}
    for name, value in expanded.items():
        if value.startswith("$"):
            raise ToolError(f"MCPTools: {name} is {value}, which the environment does not have: export it first")
    return expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as its server lists it."""

    name: str
    description: str
    schema: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """What a server answered to a call, as text for the model."""

    text: str
    ok: bool = True
    structured: Json = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Process rewards, by channel, from `_meta` under `turnwise/rewards`."""
    unshown: Mapping[str, int] = field(default_factory=dict)
    """Content that no text can show, counted by kind: `{"images": 1}`."""


class Client(Protocol):
    """An open connection."""

    @property
    def changes(self) -> bool:
        """Whether the server says that its list of tools may change."""

    async def list_tools(self) -> list[ListedTool]:
        """All tools, of every page; a ServerLostError where there is no answer."""

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> CallAnswer:
        """The answer to a call; a ServerLostError where there is none, or one that breaks the protocol."""


Connect: TypeAlias = Callable[[MCPServer], AbstractAsyncContextManager[Client]]
