"""An event loop whose clock jumps: sleeping costs nothing, and computing costs what it takes.

Invariant: the clock moves by what tasks sleep, and by the processor time that the loop itself has used, multiplied by
nothing: whatever the scheduler computes delays everything that it schedules, as it would in earnest.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import TypeVar

from turnwise.errors import RunError

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` is virtual; `computed` is how much of it was processor time of this thread."""

    def __init__(self, *, counts_computing: bool = True) -> None:
        self._now = 0.0
        self.computed = 0.0
        self._counts = counts_computing
        self._mark = time.thread_time()
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def account(self) -> None:
        """Moves the clock by the processor time used since the last call."""
        now = time.thread_time()
        used, self._mark = now - self._mark, now
        self.computed += used
        if self._counts:
            self._now += used

    def charge(self, seconds: float) -> None:
        """Moves the clock by work that the scheduler would do in earnest and is spared here."""
        self.computed += seconds
        self._now += seconds

    def jump(self, seconds: float) -> None:
        self._now += seconds


class _Jumping(selectors.DefaultSelector):
    """Waits by moving the loop's clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.account()
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RunError("the simulation waits for something that will not happen")
            self._loop.jump(max(timeout, 0.0))
        self._loop._mark = time.thread_time()  # the wait itself is no work of the scheduler's
        return ready


def run_virtually(work: Coroutine[object, object, T], *, counts_computing: bool = True) -> tuple[T, VirtualLoop]:
    """Runs a coroutine to its end, and returns the loop to read its clock."""
    loop = VirtualLoop(counts_computing=counts_computing)
    try:
        asyncio.set_event_loop(None)
        return loop.run_until_complete(work), loop
    finally:
        loop.close()
