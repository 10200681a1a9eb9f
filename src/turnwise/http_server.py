"""What every HTTP server of turnwise shares: a socket that listens, its address, and uvicorn's settings.

Invariant: a port that is taken is one line that says what to do; no server writes a log of its own; a server that is
stopped answers what is in flight first, within a bounded time. uvicorn is imported when a server is made.
"""

import socket
from typing import TYPE_CHECKING

from turnwise.errors import RunError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens, and its address, `http://127.0.0.1:8000`; port 0 takes any free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot listen at {host}:{port} ({reason}); choose another by --host and --port") from None
    bound, port = listening.getsockname()[:2]
    return listening, f"http://[{bound}]:{port}" if family == socket.AF_INET6 else f"http://{bound}:{port}"


def make_server(
    app: "ASGIApp", *, drain_seconds: int, lifespan: bool = False, websockets: bool = False
) -> "uvicorn.Server":
    """A server that runs in the present process; requests in flight have `drain_seconds` after a stop."""
    import uvicorn

    from turnwise.http_limits import TimedH11Protocol

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=TimedH11Protocol,
        ws="auto" if websockets else "none",
        lifespan="on" if lifespan else "off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_seconds,
    )
    return uvicorn.Server(config)
