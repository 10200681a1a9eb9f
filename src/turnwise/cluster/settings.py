"""The `cluster` section of a recipe: where rollout workers and learners run, one settings class for each kind.

Invariant: a key that the chosen kind does not read is an error. Neither kind changes what is learnt from: an episode
follows from its seed and the weights, wherever it is played.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt, Tag, field_validator

from turnwise.settings import Settings, by_kind


class LocalCluster(Settings):
    """All in this process, or the learner in those that torchrun started."""

    kind: Literal["local"] = "local"
    """Where rollout workers and learners run: `local`, in this process, or `ray`."""


class RayCluster(Settings):
    """Rollout workers, each an engine with environments, as Ray actors; and further learners, if there are any."""

    kind: Literal["ray"] = "ray"
    """Where rollout workers and learners run: `local`, in this process, or `ray`."""
    address: str | None = None
    """A cluster that runs already, and is left running: `auto`, or host:port. null: one is started on this machine, and
    stopped at the end."""
    rollout_workers: NonNegativeInt = 2
    """Actors that play episodes, each with a copy of the model. 0: this process plays, and the cluster has the
    environment workers (`env.workers_on`) or further learners."""
    worker_cpus: float = Field(default=1.0, gt=0)
    """CPUs that Ray reserves for each rollout worker."""
    worker_gpus: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each rollout worker; a fraction lets several share one. 0: it samples on the CPU."""
    worker_resources: dict[str, float] = Field(default_factory=dict)
    """Further resources of each rollout worker, by the names that nodes were started with: `{cpu_node: 0.01}`."""
    strategy: Literal["spread", "pack"] = "spread"
    """Rollout workers on as many nodes as there are, or on as few as possible."""
    learners: PositiveInt = 1
    """Learners that share each batch: the first in this process, and an actor for each further one."""
    learner_cpus: float = Field(default=1.0, gt=0)
    """CPUs that Ray reserves for each further learner."""
    learner_gpus: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each further learner: 1, or 0 to learn on the CPU."""
    start_seconds: float = Field(default=180.0, gt=0)
    """Seconds for the cluster to make room for all actors, for them to start, and for the last rollout worker that was
    lost to come back; more end the run."""
    working_dir: str | None = None
    """A folder that Ray copies to every node, for Python and data of your own. null: nodes see this machine's files."""

    def unread(self) -> Mapping[str, str]:
        without = "worker_cpus", "worker_gpus", "worker_resources", "strategy"
        return {} if self.rollout_workers else dict.fromkeys(without, "rollout_workers")

    @field_validator("learner_gpus")
    @classmethod
    def _whole_gpus(cls, gpus: float) -> float:
        if gpus not in (0.0, 1.0):
            raise ValueError("a learner has one GPU or none: set 0 or 1")
        return gpus


ClusterSettings: TypeAlias = Annotated[
    Annotated[LocalCluster, Tag("local")] | Annotated[RayCluster, Tag("ray")], by_kind("local")
]
"""The settings of any cluster, chosen by `kind`."""
