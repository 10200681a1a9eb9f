"""One thread for one episode: its sync code runs there in order, so that what `begin` opened works in every tool.

Invariant: calls run one at a time, in the order in which they were made, all in the same daemon thread. A call that
outlives its deadline costs that thread, and so its episode: later calls are refused, for its state is in use.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from turnwise.tools.running import TimedOutError, abandon, abandoned, contained, wait_within

T = TypeVar("T")

_Outcome: TypeAlias = "asyncio.Future[tuple[object, BaseException | None]]"
_Call: TypeAlias = tuple[contextvars.Context, Callable[[], object], asyncio.AbstractEventLoop, _Outcome]
_Calls: TypeAlias = "queue.SimpleQueue[_Call | None]"


class LostThreadError(Exception):
    """An episode's thread hangs in foreign code, so the episode cannot go on."""


class EpisodeThread:
    """`await thread.run(work, what="tool 'lookup'", seconds=30.0)`; the first call starts the thread.

    It ends with the last reference to this object.
    """

    def __init__(self) -> None:
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
            loop = asyncio.get_running_loop()
            outcome: _Outcome = loop.create_future()
            self._calls.put((contextvars.copy_context(), work, loop, outcome))
            try:
                value, error = await wait_within(outcome, seconds)
            except TimedOutError:
                self._hangs_in = f"{what} gave no answer within {seconds:g} seconds"
                abandon(thread, what)
                raise LostThreadError(self._hangs_in) from None
            except asyncio.CancelledError:
                # Not lost: the call may return yet, and the next one waits for it.
                abandon(thread, what)
                raise
        if error is not None:
            raise contained(error)
        return cast(T, value)

    def _start(self) -> threading.Thread:
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name="turnwise-episode", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None).atexit = False
        return self._thread


def _serve(calls: _Calls) -> None:
    """Runs calls until a None; it holds no reference to its `EpisodeThread`, nor to anything of a call that is over."""
    thread = threading.current_thread()
    while (call := calls.get()) is not None:
        _answer(*call)
        del call
        abandoned.discard(thread)


def _answer(
    context: contextvars.Context, work: Callable[[], object], loop: asyncio.AbstractEventLoop, outcome: _Outcome
) -> None:
    if outcome.cancelled():
        return
    try:
        settled: tuple[object, BaseException | None] = (context.run(work), None)
    except BaseException as error:  # noqa: BLE001 - handed to the caller, exit and interrupts included
        settled = (None, error)
    # The loop may be closed by the time a call returns that it had given up; the result is then dropped.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, outcome, settled)


def _settle(outcome: _Outcome, settled: tuple[object, BaseException | None]) -> None:
    if not outcome.done():
        outcome.set_result(settled)
