"""An ASGI application on a socket of this machine, until a signal ends it."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

from turnwise.errors import RunError

_DRAIN_SECONDS: Final = 5


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """A socket that listens, and its address; port 0 takes any free one."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"cannot listen at {host}:{port} ({reason}); choose another by --host and --port") from None
    bound, port = listening.getsockname()[:2]
    return listening, f"http://[{bound}]:{port}" if family == socket.AF_INET6 else f"http://{bound}:{port}"


def serve_until_signal(app: object, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in flight."""
    try:
        import uvicorn
    except ImportError:
        raise RunError("serving over HTTP needs uvicorn: pip install 'turnwise[serve]'") from None
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # an ASGI application
        loop="asyncio",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    with _signals_do_not_kill():
        ready()
        uvicorn.Server(config).run(sockets=[listening])


@contextlib.contextmanager
def _signals_do_not_kill() -> Iterator[None]:
    """uvicorn raises the signal again once it has stopped; with no handler the process would die of it."""
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
