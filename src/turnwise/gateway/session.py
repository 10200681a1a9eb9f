"""One episode's requests on their way between a server's thread and the rollout's event loop.

Invariant: a request is answered once and is one turn (n turns for n choices), however often it is sent: a retry waits
for, or is given, the first one's answer. A request whose clients have all gone before its turn began is withdrawn;
once begun, its answer is kept for a retry. After `close`, every request still waiting has an error.
"""

import asyncio
import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from turnwise.gateway.chat import Answer, ChatRequest, ErrorKind, GatewayError

_MOST_IN_FLIGHT: Final = 256
_REMEMBERED: Final = 1024
"""Answered requests that a retry can still be matched with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells a retry from a new request."""

    body: bytes
    """A digest of the path and the body."""
    key: str | None = None
    """The client's Idempotency-Key."""
    attempt: int | None = None
    """How often an SDK says it has retried (x-stainless-retry-count); None where a client does not count."""

    @classmethod
    def of(cls, path: str, body: bytes, headers: Mapping[str, str]) -> "Identity":
        """The identity of an HTTP request; `headers` by lower-case name."""
        counted = headers.get("x-stainless-retry-count", "")
        return cls(
            body=hashlib.blake2b(path.encode() + b"\0" + body, digest_size=16).digest(),
            key=headers.get("idempotency-key"),
            attempt=int(counted) if counted.isdigit() else None,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request and its answer to come; several attempts of a client may wait for it."""

    request: ChatRequest
    identity: Identity
    answer: "Future[Answer]" = field(default_factory=Future)
    waiting: int = 1

    @property
    def reusable(self) -> bool:
        """Under way or answered; one that was withdrawn or refused is tried anew."""
        return not self.answer.cancelled() and (not self.answer.done() or self.answer.exception() is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """A reward for the turn that was answered last: `Paid(name="reward", value=1.0)`."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The program has ended the episode: by its exit, by its return, or by a request."""

    failure: str = ""
    """What broke, where it was infrastructure; such an episode is not scored."""
    crashed: bool = False
    """Whether the failure is the program's own: it exited with an error, or raised."""
    exit_code: int | None = None
    result: object = None
    """What the program's function returned."""
    output: str = ""
    """The end of its standard output."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def last_line(self) -> str:
        """The last line of its standard output that is not blank."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def last_words(self) -> str:
        """`; its output ends in: ...`, or nothing."""
        return f"; its output ends in: {self.last_line[:200]}" if self.last_line else ""


Event: TypeAlias = Exchange | Paid | Ended


class Session:
    """`Session("tw-1f3a")`: `ask`, `pay` and `end` from any thread, `next` in the session's event loop."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """For the running event loop, or from another thread for the one that is given."""
        self.name = name
        self.counts: Counter[str] = Counter()
        self._loop = loop or asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._lock = threading.RLock()  # finishing an exchange, under it or not, calls `_finished`
        self._exchanges: deque[Exchange] = deque(maxlen=_REMEMBERED)
        self._last: Exchange | None = None
        """The request that was answered last."""
        self._in_flight: set[Exchange] = set()
        self._closed: GatewayError | None = None

    def ask(self, request: ChatRequest, identity: Identity) -> Exchange:
        """The exchange of a request: a new one, or that of the request which it repeats."""
        with self._lock:
            self._require_open()
            first = self._find_first(identity)
            if first is not None:
                first.waiting += 1
                self.counts["retries"] += 1
                return first
            if len(self._in_flight) >= _MOST_IN_FLIGHT:
                raise GatewayError(
                    ErrorKind.BUSY, f"this session has {_MOST_IN_FLIGHT} requests in flight", retry_after=1.0
                )
            exchange = Exchange(request=request, identity=identity)
            self._in_flight.add(exchange)
            exchange.answer.add_done_callback(lambda _: self._finished(exchange))
            self._exchanges.append(exchange)
            self.counts["requests"] += 1
            self._put(exchange)
            return exchange

    def is_overtaken(self, identity: Identity) -> bool:
        """Whether a first attempt comes after a retry with its body: the same request's, if its client has left."""
        if identity.attempt != 0 or identity.key is not None:
            return False
        with self._lock:
            return any(
                earlier.identity.attempt and earlier.identity.body == identity.body and earlier.reusable
                for earlier in self._exchanges
            )

    def leave(self, exchange: Exchange) -> None:
        """A client no longer waits: a request that has not begun and that no other attempt waits for is withdrawn."""
        with self._lock:
            exchange.waiting -= 1
            if exchange.waiting == 0 and exchange.answer.cancel():
                self.counts["withdrawn"] += 1

    def pay(self, name: str, value: float) -> None:
        """Pays the turn that was answered last."""
        with self._lock:
            self._require_open()
            self._put(Paid(name=name, value=value))

    def end(self, ended: Ended) -> None:
        """Ends the episode; a second end, or one after `close`, is ignored."""
        with self._lock:
            if self._closed is None:
                self._put(ended)

    async def next(self) -> Event:
        """The next event, in order of arrival; withdrawn requests are skipped."""
        while True:
            while not self._events:
                self._arrived.clear()
                await self._arrived.wait()
            event = self._events.popleft()
            if not isinstance(event, Exchange) or event.answer.set_running_or_notify_cancel():
                return event

    def answer(self, exchange: Exchange, answer: Answer) -> None:
        """Answers a request that `next` gave; under the lock, so that a retry finds it in flight or answered last."""
        with self._lock:
            self._last = exchange
            exchange.answer.set_result(answer)

    def close(self, error: GatewayError) -> list[Event]:
        """Refuses every request that waits and all that come, and returns the events that nothing took."""
        with self._lock:
            if self._closed is None:
                self._closed = error
            waiting, self._events = list(self._events), deque()
            for exchange in list(self._in_flight):
                refuse(exchange, error)
        return [event for event in waiting if not isinstance(event, Exchange)]

    def _find_first(self, identity: Identity) -> Exchange | None:
        """The request that this one repeats.

        A key decides where there is one. An SDK that counts attempts marks its retries; its attempt 0 is a request of
        its own, even with an equal body, as when a prompt is sampled twice. A client that does neither repeats what is
        still in flight or was answered last.
        """
        for earlier in reversed(self._exchanges):
            if not earlier.reusable:
                continue
            if identity.key is not None or earlier.identity.key is not None:
                if identity.key == earlier.identity.key:
                    return earlier
            elif identity.body == earlier.identity.body:
                if identity.attempt is None and earlier.answer.done() and earlier is not self._last:
                    return None
                return None if identity.attempt == 0 else earlier
        return None

    def _finished(self, exchange: Exchange) -> None:
        with self._lock:
            self._in_flight.discard(exchange)

    def _require_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _put(self, event: Event) -> None:
        self._events.append(event)
        call_in(self._loop, self._arrived.set)


def refuse(exchange: Exchange, error: GatewayError) -> None:
    """Fails an exchange that has no answer yet."""
    answer = exchange.answer
    with suppress(InvalidStateError, RuntimeError):  # another thread has answered or withdrawn it meanwhile
        if answer.running() or answer.set_running_or_notify_cancel():
            answer.set_exception(error)


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Calls a function in an event loop of another thread; a loop that has ended needs no call."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
