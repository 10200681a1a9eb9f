"""The section `env.workers_on` of a recipe: on which machines environment workers run, one class for each kind.

Invariant: neither kind changes what is learnt from: an episode follows from task, seed and the agent's messages.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, Tag

from turnwise.settings import Settings, by_kind


class LocalWorkers(Settings):
    """Processes beside the engine that they play with."""

    kind: Literal["local"] = "local"
    """Where environment workers run: `local`, beside each engine, or `ray`, on nodes of the cluster."""


class RayWorkers(Settings):
    """Processes on the nodes of a Ray cluster that have room for them."""

    kind: Literal["ray"] = "ray"
    """Where environment workers run: `local`, beside each engine, or `ray`, on nodes of the cluster."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs that Ray reserves for each environment worker."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Further resources of each environment worker, by the names that nodes were started with: `{cpu_node: 0.01}`."""
    strategy: Literal["spread", "pack"] = "spread"
    """Environment workers on as many nodes as there are, or on as few as possible."""


WorkersOn: TypeAlias = Annotated[
    Annotated[LocalWorkers, Tag("local")] | Annotated[RayWorkers, Tag("ray")], by_kind("local")
]
"""The settings of either, chosen by `kind`."""
