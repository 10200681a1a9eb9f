"""The official MCP client, as the connection that `MCPTools` uses; the one module that imports the package `mcp`.

Invariant: a call that the server refuses because of its arguments is an answer that the model reads; any other error of
the protocol, and any error of the transport, is a lost server.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Final, NoReturn

import httpx2

from turnwise.errors import ToolError
from turnwise.tools.mcp.connection import ServerLostError
from turnwise.tools.mcp.content import read_answer
from turnwise.tools.mcp.server import CallAnswer, Client, ListedTool, MCPServer
from turnwise.types import Json

if TYPE_CHECKING:
    import mcp

_MOST_PAGES: Final = 1000
_SHOWN_CHARS: Final = 300


@asynccontextmanager
async def connect(server: MCPServer) -> AsyncIterator[Client]:
    """A connection to a server over stdio or streamable HTTP, in whichever version of the protocol both speak."""
    if find_spec("mcp") is None:
        raise ToolError("MCP servers need the package mcp: pip install 'turnwise[mcp]'")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            async with AsyncExitStack() as stack:
                # The versions of the protocol since 2026 have no sessions over HTTP, those before have.
                if server.session and (client := await _greet(stack, server, log, mode="legacy")) is not None:
                    yield _PackageClient(client, server, log)
                else:
                    yield _PackageClient(await _connect(stack, server, log, mode="auto"), server, log)
        except Exception as error:  # noqa: BLE001 - the package raises what its transports do, in groups too
            _lose(server, log, error)


async def _greet(stack: AsyncExitStack, server: MCPServer, log: IO[str], *, mode: str) -> "mcp.Client | None":
    """A connection in this mode; None where the server does not speak it."""
    from mcp import MCPError

    try:
        return await _connect(stack, server, log, mode=mode)
    except MCPError:
        return None


async def _connect(stack: AsyncExitStack, server: MCPServer, log: IO[str], *, mode: str) -> "mcp.Client":
    from mcp import Client as PackageClient
    from mcp.client.stdio import StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp_types import Implementation

    if server.url:
        # A stream may be silent for as long as a tool runs, which has a deadline of its own.
        http = httpx2.AsyncClient(headers=dict(server.headers), timeout=httpx2.Timeout(30.0, read=None))
        transport = streamable_http_client(server.url, http_client=await stack.enter_async_context(http))
    else:
        program, *words = server.command
        parameters = StdioServerParameters(command=program, args=words, env=dict(server.variables), cwd=server.cwd)
        transport = stdio_client(parameters, errlog=log)
    client = PackageClient(
        transport,
        mode=mode,
        elicitation_callback=_decline,
        client_info=Implementation(name="turnwise", version=""),
    )
    return await stack.enter_async_context(client)


class _PackageClient:
    """`mcp.Client`, with its errors sorted into answers and lost servers."""

    def __init__(self, client: "mcp.Client", server: MCPServer, log: IO[str]) -> None:
        self._client, self._server, self._log = client, server, log

    @property
    def changes(self) -> bool:
        tools = self._client.server_capabilities.tools
        return bool(tools and tools.list_changed)

    async def list_tools(self) -> list[ListedTool]:
        listed: list[ListedTool] = []
        cursor: str | None = None
        try:
            for _ in range(_MOST_PAGES):
                page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
                listed += [_read_tool(one) for one in page.tools]
                cursor = page.next_cursor
                if not cursor:
                    return listed
        except Exception as error:  # noqa: BLE001 - whatever it raises, the list is not to be had
            _lose(self._server, self._log, error)
        raise ServerLostError(f"MCP server {self._server.name} lists its tools on more than {_MOST_PAGES} pages")

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> CallAnswer:
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS

        try:
            return read_answer(await self._client.call_tool(name, dict(arguments)))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                return CallAnswer(text=f"{name} was not called: {error.message}", ok=False)
            _lose(self._server, self._log, error)
        except Exception as error:  # noqa: BLE001 - of the transport, or an answer that is not MCP's
            _lose(self._server, self._log, error)


async def _decline(context: object, parameters: object) -> object:
    """Nobody can be asked in an episode."""
    from mcp_types import ElicitResult

    return ElicitResult(action="decline")


def _read_tool(listed: object) -> ListedTool:
    description = getattr(listed, "description", None) or getattr(listed, "title", None) or ""
    return ListedTool(
        name=str(getattr(listed, "name", "")),
        description=str(description),
        schema=getattr(listed, "input_schema", {}),
    )


def _lose(server: MCPServer, log: IO[str], error: Exception) -> NoReturn:
    """Says why a server is lost, with the last line that it wrote to standard error."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ServerLostError):
        raise error
    words = " ".join(str(error).split())[:_SHOWN_CHARS] or type(error).__name__
    log.seek(0)
    lines = [line for line in log.read()[-(2**14) :].splitlines() if line.strip()]
    said = f"; it wrote: {lines[-1].strip()[:_SHOWN_CHARS]}" if lines else ""
    raise ServerLostError(f"MCP server {server.name} is lost: {words}{said}") from error
