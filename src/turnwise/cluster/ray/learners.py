"""The learner group with its further ranks as Ray actors: what torchrun does on one machine, on any nodes.

Invariant: this process is rank 0 and drives; an actor only follows, and ends its exchange with the others when it
fails, so that no rank waits for one that is gone.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from turnwise.cluster.home import Home
from turnwise.cluster.ray.session import connect, reserve
from turnwise.cluster.settings import RayCluster
from turnwise.compute.garbage import reduced_gc
from turnwise.compute.process import configure_process
from turnwise.errors import ConfigError
from turnwise.learner.group import follow
from turnwise.learner.parallel import Parallel, host_store, join_by, reach_store

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_STARTED_BY = "cluster.learners"
_logger = logging.getLogger(__name__)


class LearnerActor:
    """One rank's process."""

    def __init__(self, home: Home | None) -> None:
        configure_process()
        if home is not None:
            home.enter()

    def ready(self) -> None:
        """Returns once the process has started and imported what it needs."""

    def follow(self, host: str, port: int, rank: int, world: int) -> None:
        """Repeats rank 0's calls until it lets this rank go."""
        logging.getLogger("turnwise").setLevel(logging.ERROR)  # rank 0 warns for all
        parallel = join_by(reach_store(host, port), rank=rank, world=world, started_by=_STARTED_BY)
        try:
            with reduced_gc():
                follow(parallel)
        finally:
            parallel.leave()


@contextmanager
def ray_learners(settings: RayCluster, room: Mapping[str, float] | None = None) -> Iterator[Parallel]:
    """Rank 0 of all learners, in this process; the actors of the others end with it.

    A cluster that is started for it has further `room`, which the run will need.
    """
    with connect(settings, room):
        import ray

        further = settings.learners - 1
        needs = {"CPU": settings.learner_cpus, "GPU": settings.learner_gpus}
        bundles = [{name: amount for name, amount in needs.items() if amount}] * further
        what = f"{further} further learners (cluster.learners)"
        with reserve(bundles, strategy="pack", seconds=settings.start_seconds, what=what) as group:
            actors = [_make_actor(settings, group, number) for number in range(further)]
            try:
                _wait_until_ready(actors, settings.start_seconds)
                host = ray.util.get_node_ip_address()
                store, port = host_store(host)
                follows = [
                    actor.follow.remote(host, port, rank, settings.learners)
                    for rank, actor in enumerate(actors, start=1)
                ]
                parallel = join_by(store, rank=0, world=settings.learners, started_by=_STARTED_BY)
                try:
                    yield parallel
                finally:
                    parallel.leave()
                    _report(follows)
            finally:
                for actor in actors:
                    with suppress(Exception):  # it is gone already
                        ray.kill(actor)


def _make_actor(settings: RayCluster, group: object, number: int) -> "ActorHandle":
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    kind = ray.remote(LearnerActor).options(
        num_cpus=settings.learner_cpus,
        num_gpus=settings.learner_gpus,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        max_restarts=0,  # a rank cannot join again: the run is resumed
    )
    return kind.remote(Home.here() if settings.working_dir is None else None)


def _wait_until_ready(actors: "list[ActorHandle]", seconds: float) -> None:
    import ray
    from ray.exceptions import GetTimeoutError

    try:
        ray.get([actor.ready.remote() for actor in actors], timeout=seconds)
    except GetTimeoutError:
        raise ConfigError(
            f"cluster: {len(actors)} further learners did not start within {seconds:g} seconds: look at Ray's logs, or "
            "raise cluster.start_seconds"
        ) from None


def _report(follows: "list[object]") -> None:
    """Logs what ended a learner, if it was not this process that let it go."""
    import ray
    from ray.exceptions import RayError

    ended, _ = ray.wait(follows, num_returns=len(follows), timeout=1.0)
    for ref in ended:
        try:
            ray.get(ref)
        except RayError as error:
            cause = getattr(error, "cause", None) or error
            _logger.warning("a learner ended: %s: %s", type(cause).__name__, str(cause).strip().splitlines()[-1])
