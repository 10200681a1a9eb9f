"""The one place where foreign code (of environments, tools, rewards, experts) may break without ending a run.

Invariant: whatever it raises, an exit included, becomes an `EpisodeFailure` in words, with the line of the user's code;
only an interrupt by the user and a cancellation from outside pass.
"""

import asyncio
import time
from typing import Self

from turnwise.tools.code_lines import line_of_error
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.tools.running import being_cancelled


class EpisodeFailure(Exception):
    """The episode cannot go on because infrastructure broke; its text becomes `Trajectory.failure`."""


class RemoteError(Exception):
    """What foreign code raised in another process, in words that name its line."""


class Boundary:
    """`with boundary("step"): ...`, one for each episode: it also knows which call the episode is in, since when."""

    __slots__ = ("since", "where")

    def __init__(self) -> None:
        self.where = ""
        self.since: float | None = None
        """When the call began, on the monotonic clock; None between calls."""

    def __call__(self, where: str) -> Self:
        self.where = where
        return self

    def __enter__(self) -> None:
        self.since = time.monotonic()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.since = None
        if error is None or isinstance(error, EpisodeFailure | KeyboardInterrupt | GeneratorExit):
            return
        if isinstance(error, asyncio.CancelledError) and being_cancelled():
            return
        raise EpisodeFailure(f"{self.where}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """`KeyError: 'gold' (support.py:41 in solved)`."""
    if isinstance(error, InfrastructureError | RemoteError):  # names what is lost, or its line, itself
        return str(error)
    words = f"{type(error).__name__}: {error}".removesuffix(": ")
    line = line_of_error(error)
    return f"{words} ({line})" if line else words
