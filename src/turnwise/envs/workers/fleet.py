"""The workers of one environment: where episodes live, what happens when a worker ends, and when it is enough.

Invariant: there are as many workers as were asked for, apart from those that are starting. A worker that hangs, or has
threads that never end, gets no further episode and is killed; one that ended is replaced. Deaths without an episode
that finished in between are limited: then every call is an error that names the last cause. A node that is lost counts
there as one death, however many workers it had.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable

from turnwise.envs.workers.protocol import Nursery
from turnwise.envs.workers.worker import START_SECONDS, Paces, Worker
from turnwise.errors import EnvError
from turnwise.tools.repeats import warn_collapsed
from turnwise.tools.running import GRACE

_logger = logging.getLogger(__name__)

_LOOK = 0.01
"""Seconds between two looks while no worker is ready."""


class Fleet:
    """`worker = await fleet.place(episode)`, and `fleet.release(worker, episode)` when the episode is over."""

    def __init__(self, open_nursery: Callable[[], Nursery], *, workers: int, max_deaths: int) -> None:
        self.size, self._max_deaths = workers, max_deaths
        self._open_nursery, self._nursery = open_nursery, open_nursery()
        self._paces = Paces()
        self._workers: list[Worker] = []
        self._in_a_row, self._last_cause = 0, ""
        self._lost_nodes: set[str] = set()
        self.counts: Counter[str] = Counter()
        """`deaths`, `killed`, `moved`, `nodes_lost`, since the fleet was made."""
        self._ids = itertools.count(1)
        try:
            self._fill()
            for worker in self._workers:
                worker.wait_until_ready(START_SECONDS)
                if not worker.ready:
                    raise EnvError(
                        f"env.workers: a worker cannot make the environment: {worker.failure or worker.cause}"
                    )
        except BaseException:
            self.close()
            raise

    def new_episode(self) -> int:
        return next(self._ids)

    async def place(self, episode: int, *, alone: bool = False) -> Worker:
        """The worker in which an episode is going to live: that with the fewest, or a new one with none beside it."""
        if self._in_a_row > self._max_deaths:
            raise EnvError(
                f"env.workers: {self._in_a_row} workers ended without an episode finished in between, the last "
                f"{self._last_cause}; is memory short? Run it with env.workers=0 to see why, or raise env.max_deaths"
            )
        for worker in self._workers:
            worker.read()  # nothing read what they said while no event loop ran
        if alone:
            chosen = self._start()
            chosen.reserved = True
        else:
            chosen = self._choose()
        chosen.episodes.add(episode)
        chosen.attach(asyncio.get_running_loop())
        try:
            while chosen.ready is None and not chosen.cause:
                await asyncio.sleep(_LOOK)
                if not alone and (other := self._choose()).ready:  # the first that is ready, where many start
                    chosen.episodes.discard(episode)
                    chosen = other
                    chosen.episodes.add(episode)
                    chosen.attach(asyncio.get_running_loop())
        except asyncio.CancelledError:
            self.release(chosen, episode, finished=False)
            raise
        return chosen

    def is_waiting(self, episode: int) -> bool:
        """Whether an episode waits for a worker that starts, since there is no other."""
        return any(episode in worker.episodes and worker.is_starting() for worker in self._workers)

    def release(self, worker: Worker, episode: int, *, finished: bool) -> None:
        """The episode is over; `finished`: by itself, so its worker was of use."""
        worker.episodes.discard(episode)
        if finished:
            self._in_a_row = 0
        worker.reserved = False
        surplus = len(self._able()) > self.size
        if surplus and not worker.episodes and not worker.cause:
            worker.kill("retired")

    def kill_if_it_hangs(self, worker: Worker, episode: int, where: str) -> None:
        """Gives calls of an episode that were cancelled a moment to end, and kills their worker if they do not."""
        if hanging := worker.hangs_in(episode):
            asyncio.get_running_loop().call_later(GRACE, self._kill, worker, episode, hanging, where)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._nursery.close()

    def _kill(self, worker: Worker, episode: int, hanging: frozenset[int], where: str) -> None:
        if worker.cause or not hanging & worker.hangs_in(episode):
            return
        others = len(worker.episodes - {episode})
        words = f"{where} ignored its cancellation: its worker is killed, {others} other episodes of it move to others"
        warn_collapsed(_logger, where.partition(" ")[0], words)
        self.counts["killed"] += 1
        worker.kill(f"killed with {where}, which ignored its cancellation")

    def _note_death(self, worker: Worker, where: str) -> None:
        if worker.leaving:
            self.counts["killed"] += 1
            return
        self.counts["deaths"] += 1
        if worker.lost_with in self._lost_nodes:
            return
        if worker.lost_with:
            self._lost_nodes.add(worker.lost_with)
            self.counts["nodes_lost"] += 1
        self._in_a_row += 1
        self._last_cause = worker.cause if worker.lost_with else f"{worker.cause}, in {where}"
        warn_collapsed(
            _logger, worker.cause, f"a worker process ended, {self._last_cause}; its episodes move to others"
        )

    def _choose(self) -> Worker:
        """The worker for a further episode; there are always as many as were asked for."""
        self._fill()
        return min(self._able(), key=lambda worker: (not worker.ready, worker.held_by() > 0, len(worker.episodes)))

    def _able(self) -> list[Worker]:
        """Those that may be given an episode."""
        self._workers = [one for one in self._workers if not one.cause]
        return [one for one in self._workers if not (one.stuck or one.reserved) and one.ready is not False]

    def _fill(self) -> None:
        while len(self._able()) < self.size:
            self._start()

    def _start(self) -> Worker:
        try:
            connection = self._nursery.start()
        except EnvError:
            self._nursery = self._open_nursery()  # it was killed, and with it all workers
            connection = self._nursery.start()
        worker = Worker(connection, self._paces, self._note_death)
        self._workers.append(worker)
        return worker
