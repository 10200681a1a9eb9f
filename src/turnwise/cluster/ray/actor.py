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
from turnwise.rollout.fleet import GroupJob
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

    async def load(self, weights: PackedWeights, version: int) -> int:
        """Loads weights, the worker's first ones as it is made, and returns the id of this process."""
        tensors = unpack(weights)
        if self._built is None:  # not in the constructor: what a call raises reaches the driver as it is
            self._built = build_worker(self._spec, tensors, number=self._number)
        await self._built.worker.load(tensors, version)
        return os.getpid()

    async def play(self, job: GroupJob, batch: int, size: int, place: int) -> tuple[Group, EngineStats]:
        """Plays a job, which is the `place`-th of `size` that were sent together as `batch`.

        Returns the engine's work since the worker was made as well.
        """
        assert self._built is not None, "weights come first"
        muster = self._waiting.setdefault(batch, _Muster(size))
        await muster.wait(place)
        if place == size - 1:
            self._waiting.pop(batch)
        with watching():
            group = await self._built.worker.play(job)
        return group, self._built.engine.stats

    async def close(self) -> None:
        """Ends the processes of environments."""
        if self._built is not None:
            self._built.env.host.close()


class _Muster:
    """Holds calls back until all of a batch have arrived, and lets them go in order."""

    def __init__(self, size: int) -> None:
        self._arrived: dict[int, asyncio.Future[None]] = {}
        self._size = size

    async def wait(self, place: int) -> None:
        loop = asyncio.get_running_loop()
        self._arrived[place] = loop.create_future()
        if len(self._arrived) == self._size:
            loop.call_soon(self._begin)  # once the last one waits, too: else it would be the first
        await self._arrived[place]

    def _begin(self) -> None:
        for _, future in sorted(self._arrived.items()):
            future.set_result(None)
