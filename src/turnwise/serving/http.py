"""An ASGI application on a socket of this machine, until a signal ends it."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

from turnwise.errors import RunError
from turnwise.http_server import make_server

_DRAIN_SECONDS: Final = 5


def serve_until_signal(app: object, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in flight."""
    try:
        server = make_server(app, drain_seconds=_DRAIN_SECONDS, lifespan=True, websockets=True)  # type: ignore[arg-type]
    except ImportError:
        raise RunError("serving over HTTP needs uvicorn: pip install 'turnwise[serve]'") from None
    with _signals_do_not_kill():
        ready()
        server.run(sockets=[listening])


@contextlib.contextmanager
def _signals_do_not_kill() -> Iterator[None]:
    """uvicorn raises the signal again once it has stopped; with no handler the process would die of it."""
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
