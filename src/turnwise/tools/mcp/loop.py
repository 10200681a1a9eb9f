"""One event loop in a thread of its own, where connections live that outlast any single loop of a run.

Invariant: there is one such loop in each process that connects anything; a forked process makes its own, because it has
the object of its parent but not the thread.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """`await background_loop().run(work)` from any event loop; `run_blocking` from none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnwise-mcp", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """What the coroutine returns or raises; it is cancelled with its caller."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def run_blocking(self, work: Coroutine[object, object, T]) -> T:
        """The same for sync code, which waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def finish(self, work: Coroutine[object, object, None], seconds: float) -> None:
        """Runs what ends something, and waits for it at most so long; called by the garbage collector, it may find
        itself in the loop's own thread, and then does not wait."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if threading.current_thread() is not self._thread:
            with suppress(TimeoutError):
                future.result(seconds)


def background_loop() -> BackgroundLoop:
    """The loop of this process, started when it is first asked for."""
    return _loop_of(os.getpid())


@lru_cache(maxsize=1)
def _loop_of(process: int) -> BackgroundLoop:
    return BackgroundLoop()
