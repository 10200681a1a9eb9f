"""Where training runs: in this process, in all that torchrun started, or with learners on a Ray cluster.

Invariant: rank 0 runs the training and owns its run directory; every other rank only follows its learner. When a rank
fails, the others end too, each with one line.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from turnwise.cluster.settings import RayCluster
from turnwise.compute.garbage import reduced_gc
from turnwise.config import Config
from turnwise.errors import ConfigError
from turnwise.learner.group import LearnerGroup, follow
from turnwise.learner.parallel import join
from turnwise.training.interruption import StopSignal
from turnwise.training.on_cluster import room_of_envs

T = TypeVar("T")


def launch(train: Callable[[LearnerGroup], T], config: Config | None = None) -> T | None:
    """Runs `train` on rank 0 with the learners of all ranks; returns None on the others, when it has ended.

    This process is rank 0 of the learners that the config asks for; under torchrun, its processes are the learners.
    """
    if config is not None and isinstance(config.cluster, RayCluster) and config.cluster.learners > 1:
        return _launch_on_ray(train, config.cluster, room_of_envs(config))
    parallel = join()
    try:
        if not parallel.is_main:
            logging.getLogger("turnwise").setLevel(logging.ERROR)  # rank 0 warns for all
            with reduced_gc(), StopSignal():  # rank 0 decides when all stop
                follow(parallel)
            return None
        with LearnerGroup(parallel) as learners:
            return train(learners)
    finally:
        parallel.leave()


def _launch_on_ray(train: Callable[[LearnerGroup], T], cluster: RayCluster, room: Mapping[str, float]) -> T:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("cluster.learners: torchrun has started learners already: set it to 1, or drop torchrun")
    from turnwise.cluster.ray.learners import ray_learners

    with ray_learners(cluster, room) as parallel, LearnerGroup(parallel) as learners:
        return train(learners)


def single_process() -> LearnerGroup:
    """The learners of one process; refuses torchrun, whose processes would all write into one run directory."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("torchrun: this runs in one process: start it without torchrun, or use `turnwise train`")
    return LearnerGroup()
