"""One thread for one episode: its sync code runs there in order, so that what `begin` opened works in every tool.

Invariant: calls run one at a time, in the order in which they were made, all in the same daemon thread. A call that
outlives its deadline costs that thread, and so its episode: later calls are refused, for its state is in use.

Fast code returns to its caller before anything else in the event loop runs, as if it had run inline: episodes that go
on in the order in which their threads happened to return would make runs that no seed repeats. Code that proves slow
is awaited instead, side by side with that of other episodes.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from turnwise.tools.code_lines import line_of_thread
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.tools.running import TimedOutError, abandon, abandoned, contained, naming, wait_within

T = TypeVar("T")

_SLOW = 1e-3
"""Seconds from which a call counts as slow: below, threads would gain less than they cost."""
_SLOW_CALLS = 3
_SLOW_SHARE = 0.05
"""Code is slow when more of its calls were: so many, a first one that imports included, and this share of all."""
_PATIENCE = 0.25
"""Seconds that the event loop stands still for code that is not known to be slow."""

_Calls: TypeAlias = "queue.SimpleQueue[_Call | None]"


class LostThreadError(InfrastructureError):
    """An episode's thread hangs in foreign code, so the episode cannot go on."""


@dataclass(slots=True)
class _Count:
    calls: int = 0
    slow: int = 0


class Paces:
    """How fast each piece of an environment's sync code has been, over all its episodes."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def is_slow(self, what: str) -> bool:
        count = self._counts.get(what)
        return count is not None and count.slow > _SLOW_CALLS + _SLOW_SHARE * count.calls

    def add(self, what: str, seconds: float) -> None:
        count = self._counts.setdefault(what, _Count())
        count.calls += 1
        count.slow += seconds > _SLOW


class _Call:
    """One call on its way through the thread. Either side may come first: `settle` and the caller's look at `done`."""

    __slots__ = ("arrival", "context", "done", "error", "loop", "outcome", "seconds", "value", "work")

    def __init__(self, work: Callable[[], object], loop: asyncio.AbstractEventLoop) -> None:
        self.work, self.loop = work, loop
        self.context = contextvars.copy_context()
        self.arrival = threading.Lock()
        self.arrival.acquire()
        self.done = False
        self.value: object = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.outcome: asyncio.Future[None] | None = None
        """Where the caller awaits it, once it does not stand still for it."""

    def answer(self) -> None:
        """Runs it, in the episode's thread."""
        began = time.perf_counter()
        try:
            self.value = self.context.run(self.work)
        except BaseException as error:  # noqa: BLE001 - handed to the caller, exit and interrupts included
            self.error = error
        self.seconds = time.perf_counter() - began
        self.done = True
        self.arrival.release()
        if self.outcome is not None:
            # The loop may be closed by the time a call returns that it had given up; the result is then dropped.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.settle)

    def settle(self) -> None:
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(None)


class EpisodeThread:
    """`await thread.run(work, what="tool 'lookup'", seconds=30.0)`; the first call starts the thread.

    It ends with the last reference to this object. `paces` are shared by the episodes of an environment.
    """

    def __init__(self, paces: Paces | None = None) -> None:
        self._paces = paces or Paces()
        self._calls: _Calls = queue.SimpleQueue()
        self._turn = asyncio.Lock()
        self._thread: threading.Thread | None = None
        self._hangs_in = ""

    async def run(self, work: Callable[[], T], *, what: str, seconds: float | None) -> T:
        """What `work()` returns or raises; its time counts from when its turn comes.

        A `LostThreadError` names what hangs: this call, or one before it.
        """
        async with self._turn:
            if self._hangs_in:
                raise LostThreadError(f"{self._hangs_in}, and holds the thread of this episode")
            thread = self._thread or self._start()
            call = _Call(work, asyncio.get_running_loop())
            self._calls.put(call)
            patience = _PATIENCE if seconds is None else min(_PATIENCE, seconds)
            if self._paces.is_slow(what) or not call.arrival.acquire(timeout=patience):
                await self._wait(call, thread, what, seconds)
        self._paces.add(what, call.seconds)
        error, call.error = call.error, None
        if error is None:
            return cast(T, call.value)
        try:
            raise contained(error)
        finally:
            del error  # or it would hold itself, and with it the episode's environment, by its traceback

    async def _wait(self, call: _Call, thread: threading.Thread, what: str, seconds: float | None) -> None:
        call.outcome = call.loop.create_future()
        if call.done:
            return
        try:
            with naming(what, thread):
                await wait_within(call.outcome, seconds)
        except TimedOutError:
            line = line_of_thread(thread)
            self._hangs_in = f"{what} gave no answer within {seconds:g} seconds{f' ({line})' if line else ''}"
            abandon(thread, what)
            raise LostThreadError(self._hangs_in) from None
        except asyncio.CancelledError:
            # Not lost: the call may return yet, and the next one waits for it.
            abandon(thread, what)
            raise

    def _start(self) -> threading.Thread:
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name="turnwise-episode", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None).atexit = False
        return self._thread


def _serve(calls: _Calls) -> None:
    """Runs calls until a None; it holds no reference to its `EpisodeThread`, nor to a call that is over."""
    thread = threading.current_thread()
    while (call := calls.get()) is not None:
        call.answer()
        del call
        abandoned.discard(thread)
