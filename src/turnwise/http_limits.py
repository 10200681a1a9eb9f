"""A limit on how long a client may take to send the head of a request, which uvicorn itself does not have.

Invariant: a connection that is open has a request in progress, or has sent its last byte less than `HEAD_SECONDS` ago,
or began its head less than that ago: clients that send a byte now and then cannot hold all connections.
"""

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS: Final = 20.0
"""From the opening of a connection, or the first byte of a further request, to the end of the request's head."""


class TimedH11Protocol(H11Protocol):
    """uvicorn's own protocol, which hangs up on clients that do not finish the head of a request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn declares it
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._cancel()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
