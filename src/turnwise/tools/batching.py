"""`TickBatcher`: joins requests into batches, for backends that answer many as fast as one.

Invariant: requests made in the same tick of the event loop, by any episode, share one call of `answer`; each gets its
own result, or the error of its batch, and can be cancelled by itself.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")


class TickBatcher(Generic[Q, R]):
    """`TickBatcher(answer, max_batch=64)`, where `await answer(requests)` gives one result per request, in order."""

    def __init__(self, answer: Callable[[Sequence[Q]], Awaitable[Sequence[R]]], *, max_batch: int) -> None:
        self._answer = answer
        self._max_batch = max_batch
        self._waiting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[Q, asyncio.Future[R]]]]
        self._waiting = weakref.WeakKeyDictionary()
        self._running: set[asyncio.Task[None]] = set()
        """Holds the tasks: the event loop itself keeps only weak references."""

    async def submit(self, request: Q) -> R:
        """The result for one request, from a batch that starts after the present tick."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._start, loop)
        result: asyncio.Future[R] = loop.create_future()
        waiting.append((request, result))
        return await result

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = [(request, result) for request, result in self._waiting.pop(loop) if not result.done()]
        for first in range(0, len(waiting), self._max_batch):
            task = loop.create_task(self._run(waiting[first : first + self._max_batch]))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, batch: Sequence[tuple[Q, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._answer([request for request, _ in batch])
            assert len(answers) == len(batch), "every request has an answer"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised to every caller
            for _, result in batch:
                if not result.done():
                    result.set_exception(error)
            return
        for (_, result), answer in zip(batch, answers, strict=True):
            if not result.done():
                result.set_result(answer)
