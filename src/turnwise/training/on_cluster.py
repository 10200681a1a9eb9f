"""The rollout workers that a run's settings ask for, as its fleet.

Invariant: a run in one process has no fleet of its own making, and ray is not imported for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from turnwise.cluster.engine import ClusterEngine
from turnwise.cluster.settings import RayCluster
from turnwise.cluster.spec import Home, WorkerSpec
from turnwise.config import Config
from turnwise.envs.workers.placing import describe_elsewhere
from turnwise.models.architecture import Architecture
from turnwise.training.build import Components


def plays_on_cluster(config: Config) -> bool:
    """Whether rollout workers elsewhere play; raises, before anything slow, if what they need is not installed."""
    if not isinstance(config.cluster, RayCluster):
        return False
    from turnwise.cluster.ray.session import require_ray

    require_ray()
    return True


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
    )


@contextmanager
def on_cluster(config: Config, parts: Components) -> Iterator[Components]:
    """The components with the fleet that plays for them; its workers end with it."""
    settings = config.cluster
    if not isinstance(settings, RayCluster):
        yield parts
        return
    from turnwise.cluster.ray.worker import ray_fleet

    spec = describe_worker(config, parts, settings.working_dir)
    with ray_fleet(settings, spec, places=config.rollout.concurrency) as fleet:
        assert isinstance(parts.engine, ClusterEngine), "made for this"
        parts.engine.workers = fleet.workers
        yield replace(parts, fleet=fleet)
