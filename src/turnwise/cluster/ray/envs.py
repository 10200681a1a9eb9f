"""Environment workers on nodes of a Ray cluster: room for each of them, and one actor per node that forks them there.

Invariant: Ray places the room, starts the actors, carries their calls and notices when one is gone; what that means for
episodes is decided elsewhere (`envs/workers`). Actors and room end with the nursery, or with its process.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cluster.envs.actor import EnvActor
from turnwise.cluster.envs.node import NodeLost
from turnwise.cluster.envs.nursery import NodeNursery, Room
from turnwise.cluster.home import Home
from turnwise.cluster.ray.session import reason, reserve
from turnwise.envs.registry import EnvSettings
from turnwise.envs.workers.placing import name_from
from turnwise.envs.workers.protocol import Birth
from turnwise.envs.workers.settings import RayWorkers

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNurseries:
    """Opens nurseries in a process that is connected to Ray: `RayNurseries(...).open(birth, settings)`."""

    home: Home | None
    """None: Ray copies a folder of the user's to every node, which is the working directory there."""
    root: Path | None
    """That folder, as this process sees it."""
    seconds: float
    """For the cluster to make room, at the start and for what was lost."""

    def open(self, birth: Birth, settings: EnvSettings) -> NodeNursery:
        """As many workers as the settings say, on the nodes that have room for them."""
        on = settings.workers_on
        assert isinstance(on, RayWorkers), "the settings that ask for it"
        what = f"{settings.workers} environment workers (env.workers)"
        bundle = {"CPU": on.cpus, **{name: amount for name, amount in on.resources.items() if amount}}
        with ExitStack() as stack:
            group = stack.enter_context(
                reserve([bundle] * settings.workers, strategy=on.strategy, seconds=self.seconds, what=what)
            )
            rooms = [
                Room(len(bundles), partial(RayRemote, group, bundles[0], on.cpus, self.home))
                for bundles in _bundles_by_node(group)
            ]
            elsewhere = _elsewhere(birth, self.root)
            nursery = NodeNursery(elsewhere, rooms, patience=self.seconds, leave=lambda: room.close())
            room = stack.pop_all()
        return nursery


class RayRemote:
    """An `EnvActor` in a bundle of a placement group, on the node where the bundle is, or will be."""

    def __init__(self, group: object, bundle: int, cpus: float, home: Home | None) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        kind = ray.remote(EnvActor).options(
            num_cpus=cpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
            max_restarts=0,  # its workers would be gone, and the trainer would not know
        )
        self._actor: ActorHandle = kind.remote(home)

    def open(self, birth: Birth, seconds: float) -> str:
        return str(_result(self._actor.open.remote(birth), seconds))

    def send(self, number: int, orders: bytes) -> None:
        _attempt(lambda: self._actor.send.remote(number, orders))

    def receive(self) -> bytes:
        news = _result(self._actor.receive.remote(), None)
        assert isinstance(news, bytes)
        return news

    def kill(self) -> None:
        import ray

        _attempt(lambda: ray.kill(self._actor))


def _attempt(call: Callable[[], object]) -> None:
    """Passes over an actor that is gone, as `receive` says so, and over a connection that was ended meanwhile."""
    import ray

    if ray.is_initialized():  # else a call would start a cluster
        with contextlib.suppress(Exception):
            call()


def _result(ref: "ObjectRef", seconds: float | None) -> object:
    """What a call returns. Not by `ray.get`, which warns of standing still in an actor: it is a thread that waits."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return ref.future().result(seconds)
    except RayTaskError:
        raise
    except RayError as error:
        raise NodeLost(reason(error)) from error
    except FutureTimeout:
        raise TimeoutError from None


def _bundles_by_node(group: object) -> list[list[int]]:
    """Of each node, the bundles of a placement group that it has."""
    from ray.util.placement_group import placement_group_table

    found: dict[str, list[int]] = {}
    for bundle, node in sorted(placement_group_table(group)["bundles_to_node_id"].items()):
        found.setdefault(node, []).append(bundle)
    return list(found.values())


def _elsewhere(birth: Birth, root: Path | None) -> Birth:
    """What a worker on another node makes its environment from: tasks come with the episodes."""
    if birth.settings is None:
        return birth
    name = name_from(root, birth.settings.name)
    return replace(birth, settings=birth.settings.model_copy(update={"name": name, "tasks": None}))
