"""Runs an episode within its limits: a time for the whole of it, and a deadline for every call of foreign code.

Invariant: an episode ends. Code that outlives its deadline is cancelled, and left behind where it does not heed that;
what broke is kept in words with its task, counted, and never scored.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from turnwise.envs.base import Env, close_env
from turnwise.envs.boundary import Boundary, EpisodeFailure
from turnwise.rollout.limits import Limits
from turnwise.tools.code_lines import line_of_task
from turnwise.tools.repeats import warn_collapsed
from turnwise.tools.running import GRACE, cancel_and_leave
from turnwise.types import StopReason, Task

_logger = logging.getLogger(__name__)
T = TypeVar("T")

_WORD_AFTER = 30.0
"""Seconds after which a call that has not returned is named in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """Why and when an episode ended."""

    stop: StopReason
    failure: str
    """What broke, in words; empty where nothing did."""
    seconds: float


async def leaving_behind(start: Callable[[Callable[[T], None]], Coroutine[object, object, T]]) -> T:
    """What `start(leave)` returns, run in a task of its own, or what was given to `leave`: that task is then left."""
    loop = asyncio.get_running_loop()
    end: asyncio.Future[T] = loop.create_future()
    running = loop.create_task(start(end.set_result))
    running.add_done_callback(lambda running: _hand_over(running, end))
    try:
        return await end
    finally:
        if not running.done():
            await cancel_and_leave(running)


def _hand_over(running: "asyncio.Task[T]", end: "asyncio.Future[T]") -> None:
    error = None if running.cancelled() else running.exception()
    if end.done():
        return
    if running.cancelled():
        end.cancel()
    elif error is not None:
        end.set_exception(error)
    else:
        end.set_result(running.result())


async def run_with_limits(
    env: Env,
    task: Task,
    converse: Callable[[asyncio.Timeout], Awaitable[StopReason]],
    *,
    boundary: Boundary,
    limits: Limits,
    leave: Callable[[EpisodeEnd], None],
) -> EpisodeEnd:
    """Runs a conversation until it stops, breaks or is out of time, and closes its environment.

    `converse` gets its clock, which it may put forward by time that is not the agent's; it makes its calls of foreign
    code within `boundary`. `leave` is called where such code heeds no cancellation: this will not return then.
    """
    started = time.monotonic()
    failure = ""

    def fail(words: str) -> EpisodeEnd:
        seconds = time.monotonic() - started
        return EpisodeEnd(stop=StopReason.ENV_FAILED, failure=f"task '{task.id}': {words}", seconds=seconds)

    seconds = None if env.has_deadline else limits.env_seconds
    with _Watch(env, task, boundary, seconds, lambda words: leave(fail(words))) as watch:
        try:
            stop = await watch.limit(lambda: _converse(converse, limits.seconds))
        except EpisodeFailure as error:
            stop, failure = StopReason.ENV_FAILED, fail(str(error)).failure
        finally:
            close_failure = await _close(env, boundary, watch)
    if close_failure and not failure:
        failure = fail(close_failure).failure
    return EpisodeEnd(stop=stop, failure=failure, seconds=time.monotonic() - started)


async def _converse(converse: Callable[[asyncio.Timeout], Awaitable[StopReason]], seconds: float | None) -> StopReason:
    try:
        async with asyncio.timeout(seconds) as clock:
            return await converse(clock)
    except TimeoutError:
        if not clock.expired():
            raise
        return StopReason.TIMEOUT


async def _close(env: Env, boundary: Boundary, watch: "_Watch") -> str:
    """Closes the environment and returns what broke in it; the episode is scored already, and stays so."""
    try:
        with boundary("close"):
            await watch.limit(lambda: close_env(env))
    except EpisodeFailure as error:
        return str(error)
    return ""


class _Watch:
    """Holds an episode's calls of foreign code to a deadline; a context manager, so that its timer is stopped."""

    def __init__(
        self, env: Env, task: Task, boundary: Boundary, seconds: float | None, leave: Callable[[str], None]
    ) -> None:
        self._env, self._task, self._boundary, self._seconds, self._leave = env, task, boundary, seconds, leave
        self._failure = ""
        self._deadline: asyncio.Timeout | None = None

    def __enter__(self) -> "_Watch":
        self._loop = asyncio.get_running_loop()
        self._running = asyncio.current_task()
        self._set_timer(self._until_next_look())
        return self

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()

    async def limit(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work()` returns or raises; an EpisodeFailure names the call of it that took too long."""
        try:
            async with asyncio.timeout(None) as self._deadline:
                return await work()
        except TimeoutError:
            failure, self._failure = self._failure, ""
            if not failure:
                raise
            raise EpisodeFailure(failure) from None

    def _set_timer(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _until_next_look(self) -> float:
        elapsed = self._elapsed()
        moments = [_WORD_AFTER] if self._seconds is None else [_WORD_AFTER, self._seconds]
        return min((moment - elapsed for moment in moments if moment > elapsed), default=_WORD_AFTER)

    def _look(self) -> None:
        """Names a call that takes long, cancels one that takes too long, and leaves one behind that goes on anyway."""
        if self._failure:
            self._leave(f"{self._failure}, and ignores its cancellation")
            return
        elapsed = self._elapsed()
        if self._seconds is not None and elapsed >= self._seconds and self._env.host.is_held_up():
            self._boundary.since, elapsed = time.monotonic(), 0.0  # its time begins anew: it had no turn yet
        if self._seconds is not None and elapsed >= self._seconds:
            self._failure = f"{self._boundary.where}: no answer within {self._seconds:g} seconds{self._place()}"
            assert self._deadline is not None, "calls are made within limits"
            self._deadline.reschedule(self._loop.time())
            self._set_timer(GRACE)
            return
        if elapsed >= _WORD_AFTER:
            self._warn(elapsed)
        self._set_timer(self._until_next_look())

    def _warn(self, elapsed: float) -> None:
        where, place = self._boundary.where, self._place()
        ends = "" if self._seconds is None else f"; its episode fails after {self._seconds:g}, rollout.env_seconds"
        words = f"task '{self._task.id}': {where} has not answered for {elapsed:.0f} seconds{place}{ends}"
        warn_collapsed(_logger, f"{where}{place}", words)

    def _place(self) -> str:
        line = self._env.host.current_line() or (line_of_task(self._running) if self._running is not None else "")
        return f" ({line})" if line else ""

    def _elapsed(self) -> float:
        since = self._boundary.since
        return 0.0 if since is None else time.monotonic() - since
