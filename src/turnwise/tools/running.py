"""Runs foreign code, such as a tool's function, with a deadline and without blocking anything else.

Invariant: a call that hangs costs one daemon thread and nothing more. There is no pool to exhaust, nothing waits for
the thread, and it cannot keep the process from exiting.
"""

import asyncio
import contextlib
import contextvars
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import TypeVar

_logger = logging.getLogger(__name__)
T = TypeVar("T")
_abandoned: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class TimedOutError(Exception):
    """The function did not return before its deadline."""


def abandoned_threads() -> int:
    """How many threads of timed-out or cancelled calls are still running."""
    return sum(thread.is_alive() for thread in list(_abandoned))


async def run_in_thread(work: Callable[[], object], seconds: float) -> object:
    """What `work()` returns or raises, run in a daemon thread of its own; TimedOutError when it takes too long."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def settle(value: object, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def target() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001 - handed to the caller, exit and interrupts included
            error = raised
        # An abandoned thread may outlive its loop; its result is then dropped.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(target,), name="turnwise-tool", daemon=True)
    thread.start()
    try:
        value, error = await _within(outcome, seconds)
    except (TimedOutError, asyncio.CancelledError):
        _abandoned.add(thread)
        _logger.warning("a call was abandoned in its thread; abandoned threads still running: %d", abandoned_threads())
        raise
    if error is not None:
        raise _contained(error)
    return value


async def run_in_loop(work: Coroutine[object, object, object], seconds: float) -> object:
    """What the coroutine returns or raises; it is cancelled, but not waited for, when it takes too long."""

    async def contained() -> object:
        try:
            return await work
        except SystemExit as error:
            # A task that lets SystemExit through stops the whole event loop.
            raise _contained(error) from error

    return await _within(asyncio.ensure_future(contained()), seconds)


async def _within(future: asyncio.Future[T], seconds: float) -> T:
    try:
        done, _ = await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        _give_up(future)
        raise
    if not done:
        _give_up(future)
        raise TimedOutError
    if future.cancelled():
        raise RuntimeError("the tool cancelled itself")
    return future.result()


def _give_up(future: asyncio.Future[T]) -> None:
    future.cancel()
    # Reading the exception keeps asyncio from logging one that is no longer awaited.
    future.add_done_callback(lambda settled: None if settled.cancelled() else settled.exception())


def _contained(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"the tool raised {type(error).__name__}")
