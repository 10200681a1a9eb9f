"""The fleet: workers that play groups of episodes, and the scheduler that gives each its jobs.

Invariant: a job is all that a group's outcome follows from besides the weights, so that a job whose worker was lost is
played again elsewhere with the same seeds; every job ends in one group or in an error, and no group is delivered twice.
The scheduler knows a worker by its protocol alone: this process, an actor on another machine, or one that only sleeps.
"""

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from turnwise.agents.base import Agent
from turnwise.agents.decoding import Decoding
from turnwise.agents.policy import PolicyAgent
from turnwise.envs.base import Env
from turnwise.errors import RunError
from turnwise.rollout.groups import play_group
from turnwise.rollout.limits import CONCURRENCY, Limits
from turnwise.types import Group, Task

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
"""Between two attempts to give a lost worker its weights."""
_PATIENCE = 300.0
"""Seconds without any worker after which the run gives up."""
_OFFERS_KEPT = 8
"""Entries of the heap of offers, for each worker, from which on it is built anew."""


class WorkerLost(Exception):
    """A worker's process or node is gone; what it was playing has to be played again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """One group to play: `GroupJob(task=task, group_size=8, seed=7, index=0, decoding=Decoding())`.

    Episode `member` of it has the seed `derive_seed(seed, "luck", index, member)`.
    """

    task: Task
    group_size: int
    seed: int
    """Of the batch that the group belongs to."""
    index: int
    """The task's place in that batch."""
    decoding: Decoding
    faults: bool = True
    """Whether faults that the environment's settings plant (`env.chaos`) may strike: in training, not in evaluation."""


class RolloutWorker(Protocol):
    """An engine with environments."""

    @property
    def places(self) -> int:
        """Groups worth having under way at once."""
        ...

    async def play(self, job: GroupJob) -> Group:
        """Plays a group to its end; raises `WorkerLost` when the worker's process or node is gone."""
        ...

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Gives the engine new weights; a worker that restarts returns once it is back, or raises `WorkerLost`."""
        ...


class LocalWorker:
    """Plays in this process and event loop."""

    def __init__(
        self,
        agent: Agent,
        env: Env,
        limits: Limits | None = None,
        *,
        concurrency: int = CONCURRENCY,
        on_episode: Callable[[], None] = lambda: None,
    ) -> None:
        """As many episodes are under way at once as `concurrency` and the agent's own allow; `on_episode` is called as
        each one ends."""
        self._agent, self._limits, self._on_episode = agent, limits or Limits(), on_episode
        self._env, self._faulty = env, env.with_faults()
        # A group has an episode at least, so that more groups at once would only wait.
        self.places = min(concurrency, agent.concurrency or concurrency)
        self._episodes = asyncio.Semaphore(self.places)

    async def play(self, job: GroupJob) -> Group:
        agent = self._agent
        if isinstance(agent, PolicyAgent):
            agent = replace(agent, decoding=job.decoding)
        return await play_group(
            agent,
            self._faulty if job.faults else self._env,
            job.task,
            group_size=job.group_size,
            seed=job.seed,
            index=job.index,
            limits=self._limits,
            places=self._episodes,
            on_episode=self._on_episode,
        )

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        if isinstance(self._agent, PolicyAgent):
            await self._agent.engine.load(weights, version)


class Fleet:
    """Gives each job to the least busy worker, and to another one when that is lost."""

    def __init__(
        self,
        workers: Sequence[RolloutWorker],
        *,
        retry_seconds: float = _RETRY_SECONDS,
        patience: float = _PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert workers, "a fleet has a worker"
        self._members = [_Member(number, worker, clock) for number, worker in enumerate(workers)]
        self._offers: list[tuple[float, int]] = []
        """A heap of (load, number) of workers with a place; outdated ones are dropped when they come up."""
        for member in self._members:
            self._offer(member)
        self._retry_seconds, self._patience = retry_seconds, patience
        self._newest: tuple[Mapping[str, torch.Tensor], int] | None = None
        self._queue: deque[asyncio.Future[_Member]] = deque()
        """Jobs that wait for a place, in the order they came."""
        self._returning: set[asyncio.Task[None]] = set()
        self._giving_up: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        """Why no job can be played any more."""
        self.replayed = 0
        """Jobs that were played again because their worker was lost."""
        self.lost = 0
        """How often a worker was lost."""

    @property
    def places(self) -> int:
        """Groups worth having under way at once, on the workers that are there."""
        return sum(member.worker.places for member in self._members if member.present)

    @property
    def busy_seconds(self) -> list[float]:
        """Of each worker: how long it had a job."""
        return [member.busy_seconds for member in self._members]

    def metrics(self) -> dict[str, float]:
        """`{"fleet/workers": 7, "fleet/lost": 1, "fleet/replayed": 3, "fleet/busy_seconds": 812.4}`, since the start;
        busy seconds are the workers' mean. A single worker has none."""
        if len(self._members) == 1:
            return {}
        busy = self.busy_seconds
        return {
            "fleet/workers": float(sum(member.present for member in self._members)),
            "fleet/lost": float(self.lost),
            "fleet/replayed": float(self.replayed),
            "fleet/busy_seconds": sum(busy) / len(busy),
        }

    def env_counts(self) -> Mapping[str, int]:
        """What happened to workers of environments that other processes made: `{"deaths": 1, "moved": 3}`."""
        return {}

    async def play(self, job: GroupJob) -> Group:
        """Plays a job on the least busy worker with a place, the first of equals; waits while all places are taken."""
        while True:
            member = await self._place()
            life = member.life
            try:
                return await member.worker.play(job)
            except WorkerLost as lost:
                self.replayed += 1
                if life == member.life:  # else it is back already, and this is late news
                    self._lose(member, lost)
            finally:
                self._free(member)

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Gives all workers new weights; one that was lost gets the newest when it is back."""
        self._newest = (self._keep(weights), version)
        present = [member for member in self._members if member.present]
        loaded = await asyncio.gather(*(one.worker.load(weights, version) for one in present), return_exceptions=True)
        for member, result in zip(present, loaded, strict=True):
            if isinstance(result, WorkerLost):
                self._lose(member, result)
            elif result is not None:
                raise result

    def _keep(self, weights: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        """A copy for workers that return later, by when the learner has changed its own; this process is never lost."""
        if all(isinstance(member.worker, LocalWorker) for member in self._members):
            return weights
        return {name: weight.detach().clone() for name, weight in weights.items()}

    async def close(self) -> None:
        """Stops waiting for workers that are gone."""
        if self._giving_up is not None:
            self._giving_up.cancel()
        for task in self._returning:
            task.cancel()
        if self._returning:  # a run that is stopped at once closes its fleet where no event loop is left to wait in
            await asyncio.gather(*self._returning, return_exceptions=True)

    async def _place(self) -> "_Member":
        """A worker with a place, which is then taken."""
        if self._failure is not None:
            raise self._failure
        place: asyncio.Future[_Member] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._assign()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._free(place.result())
            raise

    def _assign(self) -> None:
        """Gives waiting jobs the places there are."""
        while self._queue:
            if self._queue[0].done():  # its job was cancelled
                self._queue.popleft()
            elif (member := self._least_busy()) is not None:
                member.enter()
                self._offer(member)
                self._queue.popleft().set_result(member)
            else:
                return

    def _least_busy(self) -> "_Member | None":
        """The worker with the least load that has a place, the first of equals."""
        while self._offers:
            load, number = self._offers[0]
            member = self._members[number]
            if member.free and member.load == load:
                return member
            heapq.heappop(self._offers)  # of before its load changed
        return None

    def _offer(self, member: "_Member") -> None:
        """Has a worker considered with the load it has now: looking at hundreds of them for each job takes too long."""
        if len(self._offers) > _OFFERS_KEPT * len(self._members):  # most are outdated
            self._offers = [(one.load, one.number) for one in self._members if one.free]
            heapq.heapify(self._offers)
        elif member.free:
            heapq.heappush(self._offers, (member.load, member.number))

    def _free(self, member: "_Member") -> None:
        member.leave()
        self._offer(member)
        self._assign()

    def _lose(self, member: "_Member", lost: WorkerLost) -> None:
        """Notes that a worker is gone, once for all its jobs, and waits in the background until it is back."""
        if not member.present:
            return
        self.lost += 1
        member.present = False
        _logger.warning("a rollout worker is lost, and its jobs are played again: %s", lost)
        task = asyncio.get_running_loop().create_task(self._bring_back(member))
        self._returning.add(task)
        task.add_done_callback(self._end_return)
        if not any(member.present for member in self._members):
            self._giving_up = asyncio.get_running_loop().call_later(self._patience, self._give_up)

    async def _bring_back(self, member: "_Member") -> None:
        """Takes a worker back once it has the newest weights."""
        loaded = None
        while self._newest is not loaded:  # not by version: two loads may have one, before and after a cold start
            newest = self._newest
            assert newest is not None
            try:
                await member.worker.load(*newest)
                loaded = newest
            except WorkerLost:
                await asyncio.sleep(self._retry_seconds)
        member.present = True
        member.life += 1
        self._offer(member)
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        self._assign()

    def _end_return(self, task: "asyncio.Task[None]") -> None:
        """A worker that fails otherwise than by being lost would fail again: the run ends with its error."""
        self._returning.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _give_up(self) -> None:
        self._fail(
            RunError(
                f"all {len(self._members)} rollout workers have been gone for {self._patience:g} seconds: see their "
                "logs, then resume the run"
            )
        )

    def _fail(self, error: BaseException) -> None:
        """Ends the jobs that wait, and those that come, with an error."""
        self._failure = error
        for place in self._queue:
            if not place.done():
                place.set_exception(error)


class _Member:
    """One worker, and what the scheduler knows of it."""

    def __init__(self, number: int, worker: RolloutWorker, clock: Callable[[], float]) -> None:
        self.number, self.worker, self._clock = number, worker, clock
        self.present = True
        self.life = 0
        """How often it has come back."""
        self.jobs = 0
        self._busy, self._since = 0.0, clock()

    @property
    def free(self) -> bool:
        return self.present and self.jobs < self.worker.places

    @property
    def load(self) -> float:
        return self.jobs / self.worker.places

    @property
    def busy_seconds(self) -> float:
        return self._busy + (self._clock() - self._since if self.jobs else 0.0)

    def enter(self) -> None:
        if not self.jobs:
            self._since = self._clock()
        self.jobs += 1

    def leave(self) -> None:
        self.jobs -= 1
        if not self.jobs:
            self._busy += self._clock() - self._since
