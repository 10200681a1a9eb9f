"""The rollout worker's process: engine and environments, with nothing of Ray in it.

Invariant: jobs that the driver sends together begin together and in order, so that which turns share a forward does not
depend on the network: where tools run inline, the same jobs and weights give the same bits.
"""

import asyncio
import logging
import os

from turnwise.cluster.spec import BuiltWorker, WorkerSpec, build_worker
from turnwise.cluster.weights import PackedWeights, unpack
from turnwise.compute.process import configure_process
from turnwise.engines.base import EngineStats
from turnwise.rollout.fleet import GroupJob, LocalWorker
from turnwise.tools.watchdog import watching
from turnwise.types import Group


class RolloutActor:
    """Made by Ray from a spec and the newest weights; every method is called by one driver."""

    def __init__(self, spec: WorkerSpec, number: int, log_level: int) -> None:
        configure_process()
        logging.basicConfig(level=log_level, format="%(message)s")
        self._spec, self._number = spec, number
        self._built: BuiltWorker | None = None
        self._waiting: dict[int, _Muster] = {}
        self._playing: dict[tuple[int, int], asyncio.Task[Group | None]] = {}
        """By batch and place in it."""
        self._cancelled: set[tuple[int, int]] = set()
        """Jobs that the driver gave up before they arrived here."""

    async def load(self, weights: PackedWeights, version: int) -> int:
        """Loads weights, the worker's first ones as it is made, and returns the id of this process."""
        tensors = unpack(weights)
        if self._built is None:  # not in the constructor: what a call raises reaches the driver as it is
            self._built = build_worker(self._spec, tensors, number=self._number)
        await self._built.worker.load(tensors, version)
        return os.getpid()

    async def play(self, job: GroupJob, batch: int, size: int, place: int) -> tuple[Group | None, EngineStats]:
        """Plays a job, which is the `place`-th of `size` that were sent together as `batch`; None if it was cancelled.

        Returns the engine's work since the worker was made as well.
        """
        assert self._built is not None, "weights come first"
        muster = self._waiting.setdefault(batch, _Muster(size))
        arrived = muster.enter(place)  # here, since a task that is cancelled before it starts would be missed
        playing = asyncio.create_task(self._play(self._built.worker, job, (batch, place), arrived))
        if muster.is_complete:
            del self._waiting[batch]
            asyncio.get_running_loop().call_soon(muster.begin)  # once the last one waits, too: else it would be first
        self._playing[batch, place] = playing
        await asyncio.wait([playing])
        del self._playing[batch, place]
        return None if playing.cancelled() else playing.result(), self._built.engine.stats

    async def cancel(self, batch: int, place: int) -> None:
        """Ends a job that the driver has given up; returns once its conversations have ended.

        The same job may come again, and its conversations have the same names.
        """
        playing = self._playing.get((batch, place))
        if playing is None:
            self._cancelled.add((batch, place))
            return
        playing.cancel()
        await asyncio.wait([playing])

    async def _play(
        self, worker: LocalWorker, job: GroupJob, name: tuple[int, int], begin: "asyncio.Future[None]"
    ) -> Group | None:
        await begin
        if name in self._cancelled:
            self._cancelled.remove(name)
            return None
        with watching():
            return await worker.play(job)

    async def close(self) -> None:
        """Ends the processes of environments."""
        if self._built is not None:
            self._built.env.host.close()


class _Muster:
    """Holds calls back until all of a batch have arrived, and lets them go in order."""

    def __init__(self, size: int) -> None:
        self._arrived: dict[int, asyncio.Future[None]] = {}
        self._size = size

    @property
    def is_complete(self) -> bool:
        return len(self._arrived) == self._size

    def enter(self, place: int) -> "asyncio.Future[None]":
        """Notes that a call has arrived; what it returns is done when the call may begin."""
        self._arrived[place] = asyncio.get_running_loop().create_future()
        return self._arrived[place]

    def begin(self) -> None:
        for _, future in sorted(self._arrived.items()):
            if not future.done():  # else its job was cancelled
                future.set_result(None)
