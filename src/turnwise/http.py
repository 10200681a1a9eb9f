"""One HTTP client for every server that turnwise asks: search services, judges, models behind an API.

Invariant: `HttpClient.post` returns what `read` makes of a reply with status 200, or raises HttpError after a bounded
time; the error's text says what happened and never holds the key. Proxies of the environment (HTTP_PROXY, HTTPS_PROXY,
ALL_PROXY, NO_PROXY) are honoured, except for addresses of this machine.
"""

import asyncio
import ipaddress
import json
import os
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    import httpx2  # imported when the first request is made: it takes a tenth of a second

T = TypeVar("T")

_TEMPORARY_STATUSES: Final = (408, 425, 429)
_KEEP_ALIVE_SECONDS: Final = 2.0
"""Less than the 5 seconds after which common servers close an idle connection."""
_QUOTED_CHARS: Final = 120
# A generator of its own: taking from the global one would shift every draw of code that uses it.
_jitter = random.Random()


class HttpError(Exception):
    """A request without a usable reply."""

    def __init__(self, message: str, *, temporary: bool, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.temporary = temporary
        """Whether the same request may succeed later; if so, all attempts were made."""
        self.retry_after = retry_after
        """Seconds that the server asks to wait; 0 where it does not say."""


class UnreachableError(HttpError):
    """No connection: nothing listens there, the host is unknown, or TLS or the proxy failed."""


class HttpTimeoutError(HttpError):
    """No complete reply within the timeout of an attempt."""


class StatusError(HttpError):
    """A reply with a status other than 200: `StatusError(429, b"slow down", retry_after=2.0)`."""

    def __init__(self, status: int, body: bytes, *, retry_after: float = 0.0) -> None:
        temporary = status >= 500 or status in _TEMPORARY_STATUSES
        super().__init__(f"it answered with status {status}{quote(body)}", temporary=temporary, retry_after=retry_after)
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`RetryPolicy(timeout=20, attempts=3, backoff=0.5)`: three attempts of 20 seconds, waits of at most 0.5 and 1."""

    timeout: float
    """Seconds for one attempt, from connecting to the last byte."""
    attempts: int
    backoff: float
    """Seconds before the second attempt; each further wait is twice as long."""
    max_wait: float = 8.0
    """The longest wait, also where the server's Retry-After asks for more."""

    @property
    def max_seconds(self) -> float:
        """How long all attempts and the waits between them take at most, where the server asks for no longer ones."""
        return self.attempts * self.timeout + sum(self._backoff_after(i) for i in range(1, self.attempts))

    def wait_after(self, attempt: int, retry_after: float) -> float:
        """Seconds between an attempt, counted from 1, and the next: up to a quarter less, so that clients spread."""
        jittered = self._backoff_after(attempt) * _jitter.uniform(0.75, 1.0)
        return min(max(jittered, retry_after), self.max_wait)

    def _backoff_after(self, attempt: int) -> float:
        return min(self.backoff * 2.0 ** (attempt - 1), self.max_wait)


class HttpClient:
    """Posts JSON to one address, from any event loop and thread; connections are reused within a loop."""

    def __init__(self, url: str, policy: RetryPolicy, *, max_bytes: int, key_env: str | None = None) -> None:
        """Connects to nothing yet.

        Args:
            url: The address, with its path.
            policy: Timeouts and retries.
            max_bytes: A longer reply is refused.
            key_env: The environment variable that holds the key, read at each request and sent as a bearer token.
        """
        self.url = url
        self.policy = policy
        self.requests = 0
        """Attempts made, retries included."""
        self._max_bytes = max_bytes
        self._key_env = key_env
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[httpx2.AsyncClient, None]]
        self._open = weakref.WeakKeyDictionary()

    async def post(
        self,
        request: Mapping[str, object],
        read: Callable[[bytes], T],
        *,
        attempts: int | None = None,
        on_retry: Callable[[float], None] = lambda seconds: None,
    ) -> T:
        """Sends the request until a reply can be read, the attempts are used up, or an error is not temporary.

        Args:
            request: Sent as JSON.
            read: Turns the body of a reply into the result; an HttpError that it raises is treated as any other.
            attempts: Instead of the policy's.
            on_retry: Called before each retry with the seconds that the failed attempt and the wait take.
        """
        content = json.dumps(request).encode()
        attempt = 0
        while True:
            attempt += 1
            began = time.monotonic()
            try:
                return read(await self._send(content))
            except HttpError as error:
                if not error.temporary or attempt >= (attempts or self.policy.attempts):
                    raise
                wait = self.policy.wait_after(attempt, error.retry_after)
            on_retry(time.monotonic() - began + wait)
            await asyncio.sleep(wait)

    async def _send(self, content: bytes) -> bytes:
        """One attempt: the body of a reply with status 200."""
        import httpx2

        with self._lock:
            self.requests += 1
        key = self._read_key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        seconds = self.policy.timeout
        answering = False
        try:
            client = await self._connections()
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", self.url, content=content, headers=headers) as response,
            ):
                answering = True
                body = await self._read_body(response)
        except TimeoutError:
            late = "its answer was incomplete after" if answering else "no answer in"
            raise HttpTimeoutError(f"{late} {seconds:g} seconds", temporary=True) from None
        except (httpx2.RequestError, httpx2.InvalidURL, OSError) as error:
            raise _explain(error, answering=answering) from error
        if response.status_code == 200:
            return body
        # Servers quote what they were sent.
        shown = body.replace(key.encode(), b"***") if key else body
        raise StatusError(response.status_code, shown, retry_after=_seconds(response.headers.get("Retry-After")))

    async def _read_body(self, response: "httpx2.Response") -> bytes:
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_bytes():
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                raise HttpError(f"its answer is longer than {self._max_bytes} bytes", temporary=False)
        return b"".join(chunks)

    async def _connections(self) -> "httpx2.AsyncClient":
        """The pool of connections of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            self._open[loop] = _keep_open(_make_client(direct=_is_local(self.url)))
        # It never suspends before it yields, so two tasks cannot be in it at once.
        return await self._open[loop].asend(None)

    def _read_key(self) -> str:
        key = os.environ.get(self._key_env, "").strip() if self._key_env else ""
        if not (key.isascii() and key.isprintable()):
            raise HttpError(f"the key in {self._key_env} has characters that no header can hold", temporary=False)
        return key


def parse_address(url: str) -> SplitResult | None:
    """The parts of `http://127.0.0.1:8000/v1`; None for text that is not an address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return parts if usable else None


def quote(body: bytes) -> str:
    """The beginning of a body in one line, after a colon; empty where there is none."""
    line = " ".join(body[:800].decode("utf-8", "replace").split())
    return f": {line[:_QUOTED_CHARS]}" if line else ""


def _make_client(*, direct: bool) -> "httpx2.AsyncClient":
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=128, keepalive_expiry=_KEEP_ALIVE_SECONDS)
    # The timeout is that of the whole attempt, which httpx's, from byte to byte, cannot express.
    try:
        return httpx2.AsyncClient(timeout=None, limits=limits, trust_env=not direct)
    except (ValueError, ImportError, httpx2.InvalidURL) as error:
        raise UnreachableError(f"the proxy of the environment cannot be used: {error}", temporary=False) from error


async def _keep_open(client: "httpx2.AsyncClient") -> "AsyncGenerator[httpx2.AsyncClient, None]":
    """Yields the client for ever; `asyncio.run` closes open generators before its loop, and so the connections."""
    try:
        while True:
            yield client
    finally:
        await client.aclose()


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _explain(error: Exception, *, answering: bool) -> HttpError:
    import httpx2

    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return HttpError(f"its address cannot be used: {error}", temporary=False)
    words = _describe(error)
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return UnreachableError(words, temporary=True)
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError):
        words = "it closed the connection before its answer was complete" if answering else f"no answer ({words})"
    return HttpError(words, temporary=True)


def _describe(error: BaseException) -> str:
    """`Connection refused`: the operating system's own error, which is in the chain of causes."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, socket.gaierror | ssl.SSLError):
            return str(link)
        if isinstance(link, OSError) and link.errno:
            return os.strerror(link.errno)
        link = link.exceptions[0] if isinstance(link, BaseExceptionGroup) else link.__cause__ or link.__context__
    return str(error) or type(error).__name__


def _seconds(header: str | None) -> float:
    """Of a Retry-After header; 0 for a date, since clocks differ."""
    return float(header) if header and header.strip().isdecimal() else 0.0
