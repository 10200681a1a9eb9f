"""The rollout workers that a run's settings ask for, as its fleet.

Invariant: a run in one process has no fleet of its own making, and ray is not imported for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from turnwise.cluster.engine import ClusterEngine
from turnwise.cluster.settings import RayCluster
from turnwise.cluster.spec import Home, WorkerSpec
from turnwise.config import Config
from turnwise.envs.workers.placing import describe_elsewhere
from turnwise.models.architecture import Architecture
from turnwise.rollout.fleet import Fleet
from turnwise.training.build import Components


def plays_on_cluster(config: Config) -> bool:
    """Whether rollout workers elsewhere play; raises, before anything slow, if what they need is not installed."""
    if not isinstance(config.cluster, RayCluster):
        return False
    from turnwise.cluster.ray.session import require_ray

    require_ray()
    return True


def describe_worker(config: Config, parts: Components, *, home: Home | None) -> WorkerSpec:
    """What a rollout worker of this run is made from elsewhere; `home` is None where Ray copies the user's files."""
    return WorkerSpec(
        env=describe_elsewhere(parts.env, config.env, "cluster.kind"),
        model=config.model,
        architecture=Architecture.of(parts.loaded, config.model),
        tokenizer=parts.loaded.tokenizer,
        context_limit=parts.loaded.context_limit,
        autocast=parts.autocast,
        render=config.render,
        engine=config.engine,
        rollout=config.rollout,
        prompt_ids=parts.prompt_ids,
        home=home,
    )


@contextmanager
def on_cluster(config: Config, parts: Components) -> Iterator[Components]:
    """The components with the fleet that plays for them; its workers end with it."""
    settings = config.cluster
    if not isinstance(settings, RayCluster):
        yield parts
        return
    from turnwise.cluster.ray.worker import ray_workers

    spec = describe_worker(config, parts, home=Home.here() if settings.working_dir is None else None)
    with ray_workers(settings, spec, places=config.rollout.concurrency) as workers:
        assert isinstance(parts.engine, ClusterEngine), "made for this"
        parts.engine.workers = workers
        yield replace(parts, fleet=Fleet(workers, patience=settings.start_seconds))
