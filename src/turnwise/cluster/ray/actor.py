"""The rollout worker's process: engine and environments, with nothing of Ray in it but where environments are apart.

Invariant: jobs that the driver sends together begin together and in order, so that which turns share a forward does not
depend on the network: where tools run inline, the same jobs and weights give the same bits.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnwise.cluster.spec import BuiltWorker, WorkerSpec, build_worker
from turnwise.cluster.weights import PackedWeights, unpack
from turnwise.compute.process import configure_process
from turnwise.engines.base import EngineStats
from turnwise.envs.registry import EnvSettings
from turnwise.envs.workers.protocol import Birth, Nursery
from turnwise.rollout.fleet import GroupJob, LocalWorker
from turnwise.tools.watchdog import watching
from turnwise.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a job led to, and what its worker has done since it was made."""

    group: Group | None
    """None: it was cancelled."""
    work: EngineStats
    env_counts: Mapping[str, int]
    """What happened to environment workers: `{"deaths": 1, "killed": 0, "moved": 3}`."""


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
        self._arrived: set[int] = set()
        self._arrived_below = 0
        """Batches of which all jobs have arrived: those in the set, and all below this number."""

    async def load(self, weights: PackedWeights, version: int) -> int:
        """Loads weights, the worker's first ones as it is made, and returns the id of this process."""
        tensors = unpack(weights)
        if self._built is None:  # not in the constructor: what a call raises reaches the driver as it is
            self._built = build_worker(self._spec, tensors, number=self._number, open_nursery=self._open_nursery)
        await self._built.worker.load(tensors, version)
        return os.getpid()

    async def play(self, job: GroupJob, batch: int, size: int, place: int) -> Played:
        """Plays a job, which is the `place`-th of `size` that were sent together as `batch`."""
        assert self._built is not None, "weights come first"
        muster = self._waiting.setdefault(batch, _Muster(size))
        arrived = muster.enter(place)  # here, since a task that is cancelled before it starts would be missed
        playing = asyncio.create_task(self._play(self._built.worker, job, (batch, place), arrived))
        if muster.is_complete:
            del self._waiting[batch]
            self._note_arrival(batch)
            asyncio.get_running_loop().call_soon(muster.begin)  # once the last one waits, too: else it would be first
        self._playing[batch, place] = playing
        await asyncio.wait([playing])
        del self._playing[batch, place]
        return Played(
            group=None if playing.cancelled() else playing.result(),
            work=self._built.engine.stats,
            env_counts=self._built.env.host.counts(),
        )

    async def cancel(self, batch: int, place: int) -> None:
        """Ends a job that the driver has given up; returns once its conversations have ended.

        The same job may come again, and its conversations have the same names.
        """
        playing = self._playing.get((batch, place))
        if playing is None:
            if batch >= self._arrived_below and batch not in self._arrived:  # else it has ended meanwhile
                self._cancelled.add((batch, place))
            return
        playing.cancel()
        await asyncio.wait([playing])

    def _note_arrival(self, batch: int) -> None:
        self._arrived.add(batch)
        while self._arrived_below in self._arrived:
            self._arrived.remove(self._arrived_below)
            self._arrived_below += 1

    async def _play(
        self, worker: LocalWorker, job: GroupJob, name: tuple[int, int], begin: "asyncio.Future[None]"
    ) -> Group | None:
        await begin
        if name in self._cancelled:
            self._cancelled.remove(name)
            return None
        with watching():
            return await worker.play(job)

    def _open_nursery(self, birth: Birth, settings: EnvSettings) -> Nursery:
        from turnwise.cluster.ray.envs import RayNurseries

        home = self._spec.home
        root = Path.cwd() if home is None else None
        return RayNurseries(home=home, root=root, seconds=self._spec.start_seconds).open(birth, settings)

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
