"""The one place where environment code may break without ending a run.

Invariant: what broke is kept in words and counted, never scored; a user's mistake that one line can explain (a NaN
reward, a broken contract) is not luck, and passes.
"""

from turnwise.envs.base import Env
from turnwise.errors import TurnwiseError


class EpisodeFailure(Exception):
    """An episode cannot go on; carries the words for `failure`."""


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


async def close_env(env: Env) -> str:
    """Cleans up, and says what went wrong in it: the episode is over and scored, and nothing is taken from it."""
    try:
        with boundary("close"):
            await env.close()
    except EpisodeFailure as error:
        return str(error)
    return ""
