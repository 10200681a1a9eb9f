"""The one place where environment code may break without ending a run.

Invariant: what broke is kept in words and counted, never scored; a user's mistake that one line can explain (a NaN
reward, a broken contract) is no accident, and passes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnwise.agents.base import EpisodeFailure
from turnwise.envs.base import Env, close_env
from turnwise.errors import TurnwiseError
from turnwise.types import StopReason


class boundary:  # used as a function would be: `with boundary("step"): ...`
    """Within it, whatever environment code raises becomes an `EpisodeFailure`."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, TurnwiseError):
            raise EpisodeFailure(f"{self._where}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """Why and when an episode ended."""

    stop: StopReason
    failure: str
    """What broke, in words; empty where nothing did."""
    seconds: float


async def run_with_limits(
    env: Env, converse: Callable[[asyncio.Timeout], Awaitable[StopReason]], *, seconds: float | None
) -> EpisodeEnd:
    """Runs a conversation until it stops, breaks or is out of time, and closes its environment.

    `converse` gets its clock, which it may put forward by time that is not the agent's.
    """
    started = time.monotonic()
    failure = ""
    try:
        async with asyncio.timeout(seconds) as clock:
            stop = await converse(clock)
    except TimeoutError:
        if not clock.expired():
            raise
        stop = StopReason.TIMEOUT
    except EpisodeFailure as error:
        stop, failure = StopReason.ENV_FAILED, str(error)
    finally:
        close_failure = await _close(env)
    return EpisodeEnd(stop=stop, failure=failure or close_failure, seconds=time.monotonic() - started)


async def _close(env: Env) -> str:
    """Closes the environment and returns what broke in it; the episode is scored already, and stays so."""
    try:
        with boundary("close"):
            await close_env(env)
    except EpisodeFailure as error:
        return str(error)
    return ""
