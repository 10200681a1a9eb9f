"""Rollout workers as Ray actors, from the driver's side.

Invariant: a call that an actor's end cut short raises `WorkerLost`, so the fleet plays the job elsewhere; an actor is
made again when weights are loaded into a worker that has none, and so begins with the newest. Weights are put into the
object store once per load of the fleet, for all of its workers.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwise.cluster.ray.actor import Played, RolloutActor
from turnwise.cluster.ray.session import connect, reason, reserve
from turnwise.cluster.settings import RayCluster
from turnwise.cluster.spec import WorkerSpec
from turnwise.cluster.weights import pack
from turnwise.engines.base import EngineStats
from turnwise.envs.registry import settings_by_env
from turnwise.envs.workers.settings import RayWorkers
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.rollout.fleet import Fleet, GroupJob, WorkerLost
from turnwise.types import Group

if TYPE_CHECKING:
    import torch
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup

_CLOSE_SECONDS = 5.0
"""For an actor to end what its environments run."""
_CANCEL_SECONDS = 30.0
"""For an actor to end the conversations of a job."""
_OTHER_CALLS = 8
"""Calls that an actor may have at once beside its jobs and their cancellations: weights, and its end."""


class WeightStore:
    """The newest weights in the cluster's object store: a copy, which no update of the learner's changes."""

    def __init__(self) -> None:
        self._newest: tuple[ObjectRef, int] | None = None
        self.puts = 0

    def put(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        import ray

        self._newest = ray.put(pack(weights)), version
        self.puts += 1

    @property
    def newest(self) -> "tuple[ObjectRef, int]":
        """What an actor's `load` takes."""
        assert self._newest is not None, "weights come first"
        return self._newest


class RayFleet(Fleet):
    """Puts weights into the object store once, from where all its workers take them."""

    def __init__(self, workers: "Sequence[RayWorker]", store: WeightStore, *, patience: float) -> None:
        super().__init__(workers, patience=patience)
        self.workers, self.store = workers, store

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        self.store.put(weights, version)
        await super().load(weights, version)

    def env_counts(self) -> Counter[str]:
        return sum((worker.env_counts for worker in self.workers), Counter())

    def _keep(self, weights: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        return {}  # the store has a copy for workers that return later


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A job that an actor has."""

    ref: "ObjectRef"
    actor: "ActorHandle"
    batch: int
    place: int


class RayWorker:
    """One rollout worker: an actor in its bundle of the placement group, and another one there after its end."""

    def __init__(
        self,
        number: int,
        spec: "ObjectRef",
        store: WeightStore,
        settings: RayCluster,
        group: "PlacementGroup",
        *,
        places: int,
        start_seconds: float,
    ) -> None:
        self.number, self.places, self._start_seconds = number, places, start_seconds
        self._spec, self._store, self._settings, self._group = spec, store, settings, group
        self._actor: ActorHandle | None = None
        self._started = False
        self.pid = 0
        """Of the actor's process, on its node."""
        self._outbox: list[tuple[GroupJob, asyncio.Future[_Sent]]] = []
        self._batches = itertools.count()
        self._work_of_lost, self._work = EngineStats(), EngineStats()
        self._env_counts_of_lost, self._env_counts = Counter[str](), Counter[str]()

    @property
    def env_counts(self) -> Counter[str]:
        """What happened to its environments' workers, as far as finished groups have reported it."""
        return self._env_counts_of_lost + self._env_counts

    @property
    def stats(self) -> EngineStats:
        """The work of its engines, as far as finished groups have reported it."""
        return self._work_of_lost.plus(self._work)

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Loads the newest weights of the store, these or later ones; makes the actor first where there is none."""
        newest = self._store.newest
        if self._actor is not None:
            with self._loss_in_words(self._actor):
                await self._actor.load.remote(*newest)
            return
        actor = self._make_actor()
        with self._loss_in_words(actor):
            try:
                # A worker that was lost may wait for a node; the fleet gives up when it has no other.
                async with asyncio.timeout(None if self._started else self._start_seconds):
                    self.pid = await actor.load.remote(*newest)
            except TimeoutError:
                raise ConfigError(
                    f"cluster: rollout worker {self.number} did not start within {self._start_seconds:g} "
                    "seconds: look at Ray's logs, or raise cluster.start_seconds"
                ) from None
        self._actor, self._started = actor, True
        self._batches = itertools.count()  # an actor knows those that it was sent, from the first

    async def play(self, job: GroupJob) -> Group:
        """Plays a job, which is sent with the others of this turn of the event loop: they begin together."""
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[_Sent] = loop.create_future()
        if not self._outbox:
            loop.call_soon(self._send)
        self._outbox.append((job, sent))
        actor = self._actor
        with self._loss_in_words(actor):
            played = await self._result(await sent)
        # Replies may overtake each other.
        self._work = max(self._work, played.work, key=lambda one: one.prefill_tokens + one.decode_tokens)
        self._env_counts |= Counter(played.env_counts)
        assert played.group is not None, "it was not cancelled"
        return played.group

    async def _result(self, sent: "_Sent") -> Played:
        """What an actor's `play` returns; where the job is cancelled here, its actor ends it before this returns."""
        try:
            played: Played = await sent.ref
        except asyncio.CancelledError:
            with suppress(Exception):  # the actor is gone, and the job with it; or it is stuck
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await sent.actor.cancel.remote(sent.batch, sent.place)
            raise
        return played

    def begin_close(self) -> "list[ObjectRef]":
        """Asks the actor to end what its environments run; the reference is ready when it has."""
        with suppress(Exception):  # it is gone already
            return [self._actor.close.remote()] if self._actor is not None else []
        return []

    def kill(self) -> None:
        self._lose(self._actor)

    def _make_actor(self) -> "ActorHandle":
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        settings = self._settings
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self.number)
        actor = ray.remote(RolloutActor).options(
            num_cpus=settings.worker_cpus,
            num_gpus=settings.worker_gpus,
            resources=settings.worker_resources or None,
            scheduling_strategy=place,
            max_restarts=0,  # its jobs and weights are the driver's to give again
            # Ray's own limit of 1,000 calls would keep a batch of more jobs waiting for ever, and weights behind jobs.
            max_concurrency=2 * self.places + _OTHER_CALLS,
        )
        return actor.remote(self._spec, self.number, logging.getLogger().getEffectiveLevel())

    def _send(self) -> None:
        outbox = [(job, sent) for job, sent in self._outbox if not sent.done()]  # the others were cancelled
        self._outbox, actor = [], self._actor
        batch = next(self._batches) if outbox and actor is not None else 0
        for place, (job, sent) in enumerate(outbox):
            if actor is None:
                sent.set_exception(WorkerLost(f"rollout worker {self.number} is not back yet"))
            else:
                ref = actor.play.remote(job, batch, len(outbox), place)
                sent.set_result(_Sent(ref=ref, actor=actor, batch=batch, place=place))

    @contextmanager
    def _loss_in_words(self, actor: "ActorHandle | None") -> Iterator[None]:
        """Turns what Ray raises into what the fleet knows: WorkerLost, or the error that the worker's code raised."""
        from ray.exceptions import RayError, RayTaskError

        try:
            yield
        except RayTaskError as error:
            cause = error.cause
            if self._started and self._actor is None:  # it worked before: it may be the node's fault, and pass
                raise WorkerLost(f"rollout worker {self.number} cannot start again: {cause}") from error
            if not isinstance(cause, TurnwiseError):
                raise
            raise cause from None
        except RayError as error:
            self._lose(actor)
            raise WorkerLost(f"rollout worker {self.number} (process {self.pid}): {reason(error)}") from error

    def _lose(self, actor: "ActorHandle | None") -> None:
        if actor is None:
            return
        _kill(actor)  # where it was only out of reach, it must not play on
        if actor is self._actor:
            self._actor = None
            self._work_of_lost, self._work = self.stats, EngineStats()
            self._env_counts_of_lost, self._env_counts = self.env_counts, Counter()


@contextmanager
def ray_fleet(settings: RayCluster, spec: WorkerSpec, *, places: int) -> Iterator[RayFleet]:
    """The rollout workers of a run, without weights yet; their actors and their room on the cluster end with it."""
    import ray

    bundle = {"CPU": settings.worker_cpus, "GPU": settings.worker_gpus, **settings.worker_resources}
    bundles = [{name: amount for name, amount in bundle.items() if amount}] * settings.rollout_workers
    what = f"{settings.rollout_workers} rollout workers (cluster.rollout_workers)"
    with (
        connect(settings),
        reserve(bundles, strategy=settings.strategy, seconds=settings.start_seconds, what=what) as group,
    ):
        store, described = WeightStore(), ray.put(spec)
        apart = any(isinstance(env.workers_on, RayWorkers) for env in settings_by_env(spec.env).values())
        seconds = settings.start_seconds * (2 if apart else 1)  # once for itself, and once for its environments' room
        workers = [
            RayWorker(number, described, store, settings, group, places=places, start_seconds=seconds)
            for number in range(settings.rollout_workers)
        ]
        try:
            yield RayFleet(workers, store, patience=settings.start_seconds)
        finally:
            closing = [ref for worker in workers for ref in worker.begin_close()]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_SECONDS)
            for worker in workers:
                worker.kill()


def _kill(actor: "ActorHandle") -> None:
    import ray

    with suppress(Exception):  # it is gone already
        ray.kill(actor)
