"""The rollout and environment workers that a run's settings ask for.

Invariant: a run in one process has no fleet of its own making, and ray is not imported for it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from turnwise.cluster.engine import ClusterEngine
from turnwise.cluster.home import Home
from turnwise.cluster.settings import RayCluster
from turnwise.cluster.spec import WorkerSpec
from turnwise.config import Config
from turnwise.envs.registry import settings_by_env
from turnwise.envs.workers.placing import OpenNursery, describe_elsewhere
from turnwise.envs.workers.settings import RayWorkers
from turnwise.models.architecture import Architecture
from turnwise.training.build import Components


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedCluster:
    """What a run has of its cluster before it has its components."""

    plays: bool = False
    """Whether rollout workers elsewhere will play."""
    open_nursery: OpenNursery | None = None
    """Starts environment workers on its nodes; None: this process is not connected yet, since none are asked for."""


@contextmanager
def reach_cluster(config: Config) -> Iterator[ReachedCluster]:
    """Raises, before anything slow, if what a cluster needs is not installed; connects where environments need it."""
    settings = config.cluster
    if not isinstance(settings, RayCluster):
        yield ReachedCluster()
        return
    from turnwise.cluster.ray.session import connect, require_ray

    require_ray()
    plays, room = settings.rollout_workers > 0, room_of_envs(config)
    if not room:
        yield ReachedCluster(plays=plays)
        return
    from turnwise.cluster.ray.envs import RayNurseries

    root = None if settings.working_dir is None else Path(settings.working_dir).resolve()
    nurseries = RayNurseries(home=Home.here() if root is None else None, root=root, seconds=settings.start_seconds)
    with connect(settings, room):
        yield ReachedCluster(plays=plays, open_nursery=nurseries.open)


def room_of_envs(config: Config) -> Mapping[str, float]:
    """What Ray reserves for environment workers, of each rollout worker and of this process: `{"CPU": 8.0}`."""
    assert isinstance(config.cluster, RayCluster)
    room: defaultdict[str, float] = defaultdict(float)
    for env in settings_by_env(config.env).values():
        if isinstance(env.workers_on, RayWorkers):
            workers = env.workers * (config.cluster.rollout_workers + 1)
            for name, amount in {"CPU": env.workers_on.cpus, **env.workers_on.resources}.items():
                room[name] += workers * amount
    return dict(room)


def describe_worker(config: Config, parts: Components, working_dir: str | None = None) -> WorkerSpec:
    """What a rollout worker of this run is made from elsewhere, where `working_dir` may be copied to."""
    root = None if working_dir is None else Path(working_dir).resolve()
    return WorkerSpec(
        seed=config.seed,
        env=describe_elsewhere(parts.env, config.env, where="cluster.kind", root=root),
        model=config.model,
        architecture=Architecture.of(parts.loaded, config.model),
        tokenizer=parts.loaded.tokenizer,
        context_limit=parts.loaded.context_limit,
        autocast=parts.autocast,
        render=config.render,
        engine=config.engine,
        rollout=config.rollout,
        prompt_ids=parts.prompt_ids,
        home=Home.here() if root is None else None,
        start_seconds=config.cluster.start_seconds if isinstance(config.cluster, RayCluster) else 0.0,
    )


@contextmanager
def on_cluster(config: Config, parts: Components) -> Iterator[Components]:
    """The components with the fleet that plays for them; its workers end with it."""
    settings = config.cluster
    if not isinstance(settings, RayCluster) or not settings.rollout_workers:
        yield parts
        return
    from turnwise.cluster.ray.worker import ray_fleet

    spec = describe_worker(config, parts, settings.working_dir)
    with ray_fleet(settings, spec, places=config.rollout.concurrency) as fleet:
        assert isinstance(parts.engine, ClusterEngine), "made for this"
        parts.engine.workers = fleet.workers
        yield replace(parts, fleet=fleet)
