"""Tokenises what all episodes of a tick are about to read in one call, which the tokenizer spreads over the cores.

Invariant: it fills a renderer's cache and does nothing else: what a session reads is the same with and without it.
"""

import asyncio
import contextlib
import os
import weakref
from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from turnwise.errors import RenderError
from turnwise.ledger import Ledger
from turnwise.render.base import Render
from turnwise.types import Message

Messages: TypeAlias = tuple[Message, ...]

_CORES = 4
"""With fewer there is little to gain, and the episodes come back a tick later."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A renderer that keeps what it tokenised."""

    def read_ahead(self, batch: Sequence[Messages]) -> None:
        """Tokenises what `extend` is going to be asked for, and does not know yet."""
        ...


class TickReader:
    """Shared by all sessions of an agent: `await reader.prepare(render, messages, ledger)` before `render.extend`."""

    def __init__(self, cores: int | None = None) -> None:
        self._pays = (_count_cores() if cores is None else cores) >= _CORES
        self._waiting: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, list[tuple[Messages, asyncio.Future[None]]]
        ] = weakref.WeakKeyDictionary()

    async def prepare(self, render: Render, messages: Sequence[Message], ledger: Ledger) -> None:
        """Returns once the messages are tokenised, beside those of the other episodes of this tick; or at once, where
        that does not pay.

        Messages that the renderer knows wait as well: what it knows depends on the past of this process, which a run
        that was resumed does not share, and the tick decides with whom an episode is decoded.
        """
        if not self._pays or not isinstance(render, ReadsAhead):
            return
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._read, loop, render, ledger)
        read: asyncio.Future[None] = loop.create_future()
        waiting.append((tuple(messages), read))
        await read

    def _read(self, loop: asyncio.AbstractEventLoop, render: ReadsAhead, ledger: Ledger) -> None:
        waiting = [(messages, read) for messages, read in self._waiting.pop(loop) if not read.done()]
        try:
            # An error is raised again by `extend`, in the episode whose messages cannot be written.
            with ledger.spend("render"), contextlib.suppress(RenderError):
                render.read_ahead([messages for messages, _ in waiting])
        finally:  # whatever went wrong, nobody is left waiting
            for _, read in waiting:
                read.set_result(None)


def _count_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
