"""`MCPTools`: the tools of an MCP server as tools of an environment.

Invariant: the model sees the server's own names, descriptions and schemas. An error that a tool reports is an
observation; a server that is lost fails the episode, which is then never scored. A server's process ends with its
episode or, where episodes share it, with this object or this process.
"""

import asyncio
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from turnwise.errors import ToolError
from turnwise.tools.mcp.catalogue import Catalogue
from turnwise.tools.mcp.client import connect as connect_by_package
from turnwise.tools.mcp.connection import Connection, ServerLostError
from turnwise.tools.mcp.content import join_counts
from turnwise.tools.mcp.loop import background_loop
from turnwise.tools.mcp.server import CallAnswer, Connect, ListedTool, read_server
from turnwise.tools.running import TimedOutError
from turnwise.tools.tool import Tool, check_limits
from turnwise.tools.toolset import Toolset
from turnwise.types import Json, Task

_EXIT_SECONDS: Final = 20.0


@dataclass(slots=True, eq=False)
class _Shared:
    """The connection that all episodes of one process share."""

    connection: Connection | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class MCPTools(Toolset):
    """`ToolEnv(tools=[MCPTools("python server.py")], ...)`, or a URL in place of the command.

    Args:
        server: The command that starts it (stdio), or its URL (streamable HTTP).
        per_episode: Give each episode a server, or behind a URL a session, of its own; else all share one. A
            server of its own finds its task as JSON in TURNWISE_TASK, and TURNWISE_EPISODE_SEED beside it.
        setup: With per_episode: a tool that is called as an episode begins and hidden from the model. Of `task`
            (its id), `seed`, `episode_seed` and the task's data it is passed what its schema names.
        only: The tools to offer, by the server's names; by default all.
        hidden: Tools that the model is not offered; an environment may call them by `call`.
        prefix: Put before every name, where two servers have tools of one name.
        timeout: Seconds until a call times out, which the model reads.
        max_chars: Longer answers are cut, with a note.
        variables: Environment variables of the command; `$NAME` is taken from the environment.
        headers: HTTP headers for the URL; `$NAME` is taken from the environment.
        cwd: The folder that the command runs in.
        start_seconds: How long a server may take to start and list its tools.
        concurrency: With per_episode: servers that run at once; further episodes wait for a place.
        connect: Opens a connection; another than that of the package `mcp` is for tests.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        per_episode: bool = False,
        setup: str | None = None,
        only: Sequence[str] | None = None,
        hidden: Sequence[str] = (),
        prefix: str = "",
        timeout: float = 30.0,
        max_chars: int = 4000,
        variables: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cwd: str | None = None,
        start_seconds: float = 60.0,
        concurrency: int = 16,
        connect: Connect = connect_by_package,
    ) -> None:
        """Connects once and lists the tools, so that what is wrong is known before the first episode."""
        check_limits(f"{prefix}*", timeout, max_chars)
        if setup is not None and not per_episode:
            raise ToolError("MCPTools: setup prepares an episode's own server: add per_episode=True")
        if concurrency < 1:
            raise ToolError(f"MCPTools: concurrency is {concurrency}; give at least 1")
        self._server = read_server(server, variables=variables, headers=headers, cwd=cwd)
        self._per_episode, self._setup, self._connect = per_episode, setup, connect
        self._start_seconds, self._concurrency = start_seconds, concurrency
        self._catalogue = Catalogue(
            server=self._server.name,
            only=only,
            hidden={*hidden, *filter(None, (setup,))},
            prefix=prefix,
            timeout=timeout,
            max_chars=max_chars,
        )
        self._shared: dict[int, _Shared] = {}
        self._places: dict[int, asyncio.Semaphore] = {}
        # Called when this object is collected or the process ends, whichever is first.
        weakref.finalize(self, _close_shared, self._shared)
        try:
            self._catalogue.make_tools(background_loop().run_blocking(self._list_first()), _refuse_early)
        except ServerLostError as error:
            raise ToolError(f"{error}: start it by hand to see why") from None

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._catalogue.make_tools(self._catalogue.listed, _refuse_early)

    async def open(self, task: Task, episode_seed: int) -> "OpenMCPTools":
        if not self._per_episode:
            connection, listed = await background_loop().run(self._share())
            return OpenMCPTools(self._catalogue, connection, listed)
        return await background_loop().run(self._begin(task, episode_seed))

    def close(self) -> None:
        """Ends the server that episodes share, if it runs; the next episode starts another."""
        _close_shared(self._shared)

    async def _list_first(self) -> list[ListedTool]:
        if not self._per_episode:
            return (await self._share())[1]
        connection = await Connection.open(self._server, self._connect, seconds=self._start_seconds)
        try:
            return await connection.list_tools(seconds=self._start_seconds)
        finally:
            await connection.close()

    async def _share(self) -> tuple[Connection, list[ListedTool]]:
        """The shared connection, opened anew where it was lost; the list is read again if the server may change it."""
        shared = self._shared.setdefault(os.getpid(), _Shared())
        async with shared.opening:
            connection = shared.connection
            if connection is not None and connection.lost:
                shared.connection = None
                await connection.close()
                connection = None
            if connection is None:
                connection = await Connection.open(self._server, self._connect, seconds=self._start_seconds)
                shared.connection = connection
            elif not connection.client.changes:
                return connection, self._catalogue.listed
            return connection, await connection.list_tools(seconds=self._start_seconds)

    async def _begin(self, task: Task, episode_seed: int) -> "OpenMCPTools":
        """A connection for one episode; the tools own it from here on, even if their caller has gone meanwhile."""
        server = self._server.for_episode(task, episode_seed)
        places = self._places.setdefault(os.getpid(), asyncio.Semaphore(self._concurrency))
        await places.acquire()
        connection: Connection | None = None
        try:
            connection = await Connection.open(server, self._connect, seconds=self._start_seconds)
            listed = await connection.list_tools(seconds=self._start_seconds)
            opened = OpenMCPTools(self._catalogue, connection, listed, release=places.release)
        except BaseException:
            if connection is not None:
                await asyncio.shield(connection.close())
            places.release()
            raise
        try:
            if self._setup is not None:
                await self._set_up(opened, task, episode_seed)
        except BaseException:
            await asyncio.shield(opened.close())
            raise
        return opened

    async def _set_up(self, opened: "OpenMCPTools", task: Task, episode_seed: int) -> None:
        name = str(self._setup)
        try:
            answer = await opened.call_with(name, {**known_of(task), "episode_seed": episode_seed})
        except TimedOutError:
            raise ServerLostError(f"MCP server {self._server.name}: {name} timed out for '{task.id}'") from None
        if not answer.ok:
            raise ServerLostError(f"MCP server {self._server.name}: {name} failed for '{task.id}': {answer.text}")
        opened.opening = answer.text


@dataclass(slots=True, kw_only=True)
class _Calls:
    """The calls of one episode; tools hold this and not `OpenMCPTools`, which is so collected with its episode."""

    connection: Connection
    timeout: float
    unshown: Counter[str] = field(default_factory=Counter)

    async def make(self, name: str, arguments: Mapping[str, Json]) -> CallAnswer:
        answer = await background_loop().run(self.connection.call(name, arguments, seconds=self.timeout))
        self.unshown.update(answer.unshown)
        return answer


class OpenMCPTools:
    """The tools of a server within one episode; `call` reaches the hidden ones, too."""

    def __init__(
        self,
        catalogue: Catalogue,
        connection: Connection,
        listed: list[ListedTool],
        *,
        release: Callable[[], None] | None = None,
    ) -> None:
        """`release` gives the episode's place back; without it, the connection is shared and stays open."""
        self._calls = _Calls(connection=connection, timeout=catalogue.timeout)
        self.tools = catalogue.make_tools(listed, self._calls.make)
        self.opening = ""
        """What the setup tool answered."""
        self._find = partial(catalogue.find, listed)
        self._release = release
        self._finalizer = None
        if release is not None:
            # For an episode whose environment never gets to close it.
            self._finalizer = weakref.finalize(self, _close_later, connection, release, os.getpid())

    @property
    def metrics(self) -> dict[str, float]:
        return join_counts(self._calls.unshown.items())

    async def call(self, name: str, arguments: Mapping[str, Json] | None = None) -> CallAnswer:
        """The server's answer to a call of any of its tools, by the server's own name for it."""
        return await self._calls.make(name, arguments or {})

    async def call_with(self, name: str, known: Mapping[str, Json]) -> CallAnswer:
        """The same, passing on what the tool's schema names of what is known."""
        properties = self._find(name).schema.get("properties")
        named = properties if isinstance(properties, Mapping) else ()
        return await self.call(name, {key: known[key] for key in named if key in known})

    async def close(self) -> None:
        if self._release is not None and self._finalizer is not None and self._finalizer.detach() is not None:
            await background_loop().run(_close_and_release(self._calls.connection, self._release))


def known_of(task: Task) -> dict[str, Json]:
    """What a hidden tool may ask of a task."""
    return {**task.data, "task": task.id, "seed": task.seed}


async def _close_and_release(connection: Connection, release: Callable[[], None]) -> None:
    try:
        await connection.close()
    finally:
        release()


def _close_later(connection: Connection, release: Callable[[], None], process: int) -> None:
    """Ends an episode's server from any thread; a forked process leaves its parent's servers alone."""
    if process == os.getpid():
        background_loop().finish(_close_and_release(connection, release), _EXIT_SECONDS)


def _close_shared(shared: dict[int, _Shared]) -> None:
    here = shared.pop(os.getpid(), None)
    if here is not None and here.connection is not None:
        background_loop().finish(here.connection.close(), _EXIT_SECONDS)


async def _refuse_early(name: str, arguments: Mapping[str, Json]) -> CallAnswer:
    raise ServerLostError(f"{name} was called before its episode began; reset the environment first")
