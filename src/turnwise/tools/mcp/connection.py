"""A connection to one MCP server: opened, held and closed by one task in the background loop.

Invariant: whatever happens to a server or its caller, `close` ends the server's process; a connection that has failed
once says so, and is not used again.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from turnwise.errors import TurnwiseError
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.tools.mcp.server import CallAnswer, Client, Connect, ListedTool, MCPServer
from turnwise.tools.running import TimedOutError
from turnwise.types import Json

_PROBE_SECONDS: Final = 5.0
"""In which a server that left a call unanswered must list its tools, or counts as lost."""
_CLOSE_SECONDS: Final = 15.0
"""The client's own patience with a server that will not end is 6 seconds."""


class ServerLostError(InfrastructureError):
    """An MCP server that cannot be started or reached, or breaks its protocol."""


class Connection:
    """`connection = await Connection.open(server, connect, seconds=60.0)`, all of it in the background loop."""

    def __init__(self, server: MCPServer, connect: Connect) -> None:
        self._server, self._connect = server, connect
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None
        self.lost = ""
        """Why it cannot be used any more."""

    @classmethod
    async def open(cls, server: MCPServer, connect: Connect, *, seconds: float) -> "Connection":
        """Starts or reaches a server, and greets it."""
        connection = cls(server, connect)
        connection._holding = asyncio.create_task(connection._hold())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(connection._client)
        except TimeoutError:
            await connection.close()
            raise ServerLostError(f"MCP server {server.name} did not answer within {seconds:g} seconds") from None
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def client(self) -> Client:
        return self._client.result()

    async def list_tools(self, *, seconds: float) -> list[ListedTool]:
        """The server's tools; the connection is lost where it does not answer in time."""
        try:
            async with asyncio.timeout(seconds):
                return await self.client.list_tools()
        except TimeoutError:
            self.lost = f"MCP server {self._server.name} did not list its tools within {seconds:g} seconds"
            raise ServerLostError(self.lost) from None
        except ServerLostError as error:
            self.lost = str(error)
            raise

    async def call(self, name: str, arguments: Mapping[str, Json], *, seconds: float) -> CallAnswer:
        """The answer to a call; TimedOutError if the tool is slow, ServerLostError if the server is gone."""
        if self.lost:
            raise ServerLostError(self.lost)
        try:
            async with asyncio.timeout(seconds):
                return await self.client.call_tool(name, arguments)
        except TimeoutError:
            await self._probe(name, seconds)
            raise TimedOutError from None
        except ServerLostError as error:
            self.lost = str(error)
            raise

    async def close(self) -> None:
        """Leaves the server; one that was started here has ended when this returns."""
        self._closing.set()
        if self._holding is None:
            return
        if not self._client.done():
            self._holding.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait({self._holding}, timeout=_CLOSE_SECONDS)
        self._holding.cancel()
        if self._client.done() and not self._client.cancelled():
            self._client.exception()  # read, or asyncio logs it

    async def _probe(self, name: str, seconds: float) -> None:
        """A slow tool is the model's business; a server that answers nothing else either is lost."""
        try:
            await self.list_tools(seconds=_PROBE_SECONDS)
        except ServerLostError:
            self.lost = (
                f"MCP server {self._server.name} left a call of {name} unanswered for {seconds:g} seconds, and lists "
                "no tools"
            )
            raise ServerLostError(self.lost) from None

    async def _hold(self) -> None:
        try:
            async with self._connect(self._server) as client:
                self._client.set_result(client)
                await self._closing.wait()
        except asyncio.CancelledError:
            self._client.cancel()
            raise
        except (ServerLostError, TurnwiseError) as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a client may raise anything, in groups too
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            self._fail(ServerLostError(f"MCP server {self._server.name} is lost: {words}"))

    def _fail(self, error: Exception) -> None:
        self.lost = self.lost or str(error)
        if not self._client.done():
            self._client.set_exception(error)
