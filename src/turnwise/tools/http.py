"""One POST over HTTP: what the clients of search services, judges and chat models have in common.

Invariant: a post ends in a reply, or in OSError or HTTPException, which may pass, or in TooLongError, which would not;
a body that comes byte by byte cannot outlast the timeout. Servers are reached directly, past any proxy.
"""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

_WORTH_ASKING_AGAIN: Final = (408, 425, 429)


class TooLongError(Exception):
    """A reply that is longer than anything this server should say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`Reply(status=429, body=b"slow down", retry_after=2.0)`."""

    status: int
    body: bytes
    retry_after: float | None = None
    """Seconds that the server asks to wait, where it says so."""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered in a while: the server is busy, or broke."""
        return self.status >= 500 or self.status in _WORTH_ASKING_AGAIN

    def quote(self) -> str:
        """The beginning of the body in one line, after a colon; empty where there is none."""
        said = " ".join(self.body[:800].decode("utf-8", "replace").split())
        return f": {said[:120]}" if said else ""


def read_address(url: str) -> SplitResult | None:
    """The parts of `http://127.0.0.1:8000/v1`; None for what is no address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if usable else None


def post(
    address: SplitResult, body: bytes, *, timeout: float, most_bytes: int, headers: Mapping[str, str] | None = None
) -> Reply:
    """Sends JSON, and returns what came back, whatever its status."""
    make = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = make(str(address.hostname), address.port, timeout=timeout)
    deadline = time.monotonic() + timeout
    path = address.path + (f"?{address.query}" if address.query else "")
    try:
        connection.request(
            "POST", path, body, {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
        )
        response = connection.getresponse()
        return Reply(
            status=response.status,
            body=_read_until(response, deadline, most_bytes),
            retry_after=_seconds(response.getheader("Retry-After")),
        )
    finally:
        connection.close()


def _read_until(response: http.client.HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    """The body; the timeout of a connection counts from byte to byte, which a slow server can go on with for ever."""
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read1(2**16):
        chunks.append(chunk)
        size += len(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError("it was still answering when the time was up")
        if size > most_bytes:
            raise TooLongError(f"its answer is longer than {most_bytes} bytes")
    if response.length:
        raise ConnectionError("it closed the connection before its answer was complete")
    return b"".join(chunks)


def _seconds(header: str | None) -> float | None:
    """`Retry-After` may also be a date, which is as good as nothing said: clocks differ."""
    return float(header) if header and header.strip().isdecimal() else None
