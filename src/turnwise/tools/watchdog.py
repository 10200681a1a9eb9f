"""Names foreign code that blocks the event loop: a quick tool that sleeps, an async step that never yields.

Invariant: it costs the watched code nothing. One daemon thread asks each watched loop for a sign of life, and where
none comes it reads from the loop's own stack what runs there; code of ours that works for long is not named.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import TypeAlias, cast

from turnwise.tools.code_lines import frame_of_thread, line_of_stack
from turnwise.tools.repeats import warn_collapsed

_logger = logging.getLogger(__name__)

_INTERVAL = 1.0
"""Seconds between two looks."""
_BLOCKED_AFTER = 5.0
"""Seconds without a sign of life after which what blocks the loop is named."""
_AGAIN = 6.0
"""The same call is named again after so many times as long."""

Describe: TypeAlias = Callable[[Mapping[str, object]], str]
"""From the local variables of a function: what it calls, in words; empty while that is no foreign code."""

playing: contextvars.ContextVar[str] = contextvars.ContextVar("playing", default="")
"""The id of the task that is being played; what calls foreign code may keep it in a local variable, to be described."""

_callers: dict[CodeType, Describe] = {}
_watched: dict[asyncio.AbstractEventLoop, "_Loop"] = {}
_lock = threading.Lock()
_thread: threading.Thread | None = None


def _forget_parent() -> None:
    """A forked process has loops and a watchdog of its own, and a lock that no thread of its parent's can hold."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _watched.clear()


os.register_at_fork(after_in_child=_forget_parent)


def calls_foreign_code(function: Callable[..., object], describe: Describe) -> None:
    """Registers a function of ours that calls foreign code directly, and how to name what it calls."""
    _callers[cast(FunctionType, function).__code__] = describe


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """While it is open, code that blocks the running event loop is named in the log."""
    global _thread
    loop = asyncio.get_running_loop()
    with _lock:
        watched = _watched.setdefault(loop, _Loop(loop))
        watched.users += 1
        # Not alive: never started, out of work, or left behind by a fork.
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_watch, name="turnwise-watchdog", daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _lock:
            watched.users -= 1
            if not watched.users:
                del _watched[loop]


def _watch() -> None:
    global _thread
    while True:
        time.sleep(_INTERVAL)
        with _lock:
            loops = list(_watched.values())
            if not loops:
                _thread = None
                return
        for loop in loops:
            loop.look()


class _Loop:
    """One event loop under watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self._loop, self._thread_id = loop, threading.get_ident()
        self._alive = True
        self._frame: FrameType | None = None
        """The foreign function that was on the loop's stack at every look since the last sign of life."""
        self._since = self._next_word = 0.0

    def look(self) -> None:
        if self._alive:
            self._alive, self._frame = False, None
            with contextlib.suppress(RuntimeError):  # it is closed by now
                self._loop.call_soon_threadsafe(self._live)
            return
        stack = frame_of_thread(self._thread_id)
        frame, words = _find_foreign(stack)
        if frame is None or frame is not self._frame:
            self._frame, self._since, self._next_word = frame, time.monotonic(), _BLOCKED_AFTER
            return
        elapsed = time.monotonic() - self._since
        if elapsed >= self._next_word:
            self._next_word = _AGAIN * elapsed
            line = line_of_stack(stack)
            warn_collapsed(
                _logger,
                line if elapsed < _AGAIN * _BLOCKED_AFTER else f"{line} for {elapsed:.0f} seconds",
                f"{' in '.join(words)} has blocked all other episodes for {elapsed:.0f} seconds ({line}): "
                "leave quick=True out, or await what it waits for",
            )

    def _live(self) -> None:
        self._alive = True


def _find_foreign(frame: FrameType | None) -> tuple[FrameType | None, list[str]]:
    """The foreign function that was called last on a stack, and our words for it, inner first, up to its task."""
    inside, found, words = None, None, list[str]()
    while frame is not None:
        describe = _callers.get(frame.f_code)
        if describe is not None and inside is not None and (said := describe(frame.f_locals)):
            if said not in words and not any(" of task " in one for one in words):
                words.append(said)
            found = found or inside
        inside, frame = frame, frame.f_back
    return found, words
