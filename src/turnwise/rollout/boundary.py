"""The one place where environment code may break without ending a run.

Invariant: what broke is kept in words and counted, never scored; a user's mistake that one line can explain (a NaN
reward, a broken contract) is not luck, and passes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.envs.base import Env
from turnwise.errors import TurnwiseError


class EpisodeFailure(Exception):
    """An episode cannot go on; carries the words for `failure`."""


@contextmanager
def boundary(where: str) -> Iterator[None]:
    """Within it, whatever environment code raises becomes an `EpisodeFailure`."""
    try:
        yield
    except TurnwiseError:
        raise
    except Exception as error:
        raise EpisodeFailure(f"{where}: {type(error).__name__}: {error}") from error


async def close_env(env: Env) -> str:
    """Cleans up, and says what went wrong in it: the episode is over and scored, and nothing is taken from it."""
    try:
        with boundary("close"):
            await env.close()
    except EpisodeFailure as error:
        return str(error)
    return ""
