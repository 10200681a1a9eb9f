"""The two ways to an MCP server of ours: stdin and stdout, or streamable HTTP.

Invariant: over HTTP every client has a session, and with it an episode of its own. The versions of the protocol since
2026 have no sessions over HTTP, so they are refused by the answer that sends a client back to those that have.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Final, TypeAlias

from turnwise.http_server import listen
from turnwise.serving.http import serve_until_signal

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_VERSION_HEADER: Final = b"mcp-protocol-version"
_UNSUPPORTED_VERSION: Final = -32022

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def serve_stdio(server: "Server[dict[str, object]]") -> None:
    """Serves the one client at stdin and stdout, until it leaves."""
    from mcp.server.stdio import stdio_server

    async def main() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    asyncio.run(main())


def serve_http(server: "Server[dict[str, object]]", *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves any number of sessions at `/mcp`, until SIGINT or SIGTERM; `ready` is called with the address."""
    socket, url = listen(host, port)
    serve_until_signal(make_app(server, host), socket, lambda: ready(f"{url}/mcp"))


def make_app(server: "Server[dict[str, object]]", host: str) -> App:
    """The ASGI application; DNS rebinding protection is on where it listens on this machine alone."""
    inner = server.streamable_http_app(host=host)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        version = _version_of(scope)
        if version is not None and version not in _versions_with_sessions():
            await _refuse(send)
        else:
            await inner(scope, receive, send)

    return app


def _versions_with_sessions() -> tuple[str, ...]:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

    return tuple(HANDSHAKE_PROTOCOL_VERSIONS)


def _version_of(scope: Scope) -> str | None:
    headers = scope.get("headers", ())
    assert isinstance(headers, list | tuple), "ASGI has a list"
    return next((value.decode("latin-1") for name, value in headers if name == _VERSION_HEADER), None)


async def _refuse(send: Send) -> None:
    data = {"supported": list(_versions_with_sessions())}
    error = {"code": _UNSUPPORTED_VERSION, "message": "an episode needs a session: initialize one", "data": data}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
