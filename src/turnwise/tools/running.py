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
from collections.abc import Callable, Coroutine, Iterator
from typing import TypeVar

from turnwise.tools.code_lines import line_of_thread
from turnwise.tools.repeats import warn_collapsed

_logger = logging.getLogger(__name__)
T = TypeVar("T")
GRACE = 2.0
"""Seconds that cancelled code has to clean up."""
abandoned: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads that nothing waits for any more."""

_named_after: contextvars.ContextVar[float | None] = contextvars.ContextVar("named_after", default=None)


class TimedOutError(Exception):
    """The function did not return before its deadline."""


def abandoned_threads() -> int:
    """How many threads of timed-out or cancelled calls are still running."""
    return sum(thread.is_alive() for thread in list(abandoned))


def abandon(thread: threading.Thread, what: str) -> None:
    """Counts a thread that still runs though nothing waits for it; logs it by what runs there."""
    abandoned.add(thread)
    warn_collapsed(
        _logger,
        what,
        f"{what} was abandoned in its thread, which goes on; abandoned threads still running: {abandoned_threads()}",
    )


async def run_in_thread(work: Callable[[], T], seconds: float | None, *, what: str = "a call") -> T:
    """What `work()` returns or raises, run in a daemon thread of its own; TimedOutError when it takes too long."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def target() -> None:
        value: T | None = None
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
        with naming(what, thread):
            value, error = await wait_within(outcome, seconds)
    except (TimedOutError, asyncio.CancelledError):
        abandon(thread, what)
        raise
    if error is not None:
        raise contained(error)
    return value  # type: ignore[return-value]  # no error, so it is what `work` returned


@contextlib.contextmanager
def naming_slow_calls(after: float) -> Iterator[None]:
    """Within it, a call in a thread that has not returned after so many seconds is named in the log, with its line."""
    token = _named_after.set(after)
    try:
        yield
    finally:
        _named_after.reset(token)


@contextlib.contextmanager
def naming(what: str, thread: threading.Thread) -> Iterator[None]:
    """Names what runs in a thread if it takes long, where `naming_slow_calls` asks for it."""
    after = _named_after.get()
    if after is None:
        yield
        return

    def say() -> None:
        line = line_of_thread(thread)
        words = f"{what} has not answered for {after:g} seconds{f' ({line})' if line else ''}"
        warn_collapsed(_logger, f"{what} {line}", words)

    timer = asyncio.get_running_loop().call_later(after, say)
    try:
        yield
    finally:
        timer.cancel()


async def run_in_loop(work: Coroutine[object, object, T], seconds: float | None) -> T:
    """What the coroutine returns or raises; it is cancelled, but not waited for, when it takes too long."""

    async def run() -> T:
        try:
            return await work
        except (Exception, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError):
            raise
        except BaseException as error:
            # A task that lets SystemExit through stops the whole event loop.
            raise contained(error) from error

    return await wait_within(asyncio.ensure_future(run()), seconds)


async def wait_within(future: asyncio.Future[T], seconds: float | None) -> T:
    """The future's result; when it takes too long, or the caller is cancelled, the future is cancelled and left."""
    try:
        done, _ = await asyncio.wait({future}, timeout=seconds)
    except asyncio.CancelledError:
        await cancel_and_leave(future)
        raise
    if not done:
        future.cancel()
        _leave(future)
        raise TimedOutError
    if future.cancelled():
        raise RuntimeError("it cancelled itself")
    return future.result()


async def cancel_and_leave(future: asyncio.Future[T]) -> None:
    """Cancels it and gives it a moment to clean up; what does not heed the cancellation is left behind."""
    future.cancel()
    try:
        await asyncio.wait({future}, timeout=GRACE)
    finally:
        _leave(future)


def _leave(future: asyncio.Future[T]) -> None:
    # Reading the exception keeps asyncio from logging one that is no longer awaited.
    future.add_done_callback(lambda settled: None if settled.cancelled() else settled.exception())
    if isinstance(future, asyncio.Task) and not future.done():
        # An event loop waits, as it closes, for every task that it knows; one that ignores cancellation would hold it.
        asyncio.tasks._unregister_task(future)  # asyncio's API for other event loops
        future._log_destroy_pending = False  # type: ignore[attr-defined]  # it is no surprise that it is pending


def contained(error: BaseException) -> Exception:
    """The error, where it is one that code may raise; an exit or an interrupt of foreign code ends nothing of ours."""
    if isinstance(error, Exception):
        return error
    words = f": {error}" if str(error) else ""
    return RuntimeError(f"it raised {type(error).__name__}{words}").with_traceback(error.__traceback__)


def being_cancelled() -> bool:
    """Whether a CancelledError is meant for the present task, and not one that foreign code raised by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
