"""The nodes on which the workers of one environment run.

Invariant: a worker is started where there is room for it. The place of a node that is lost is offered to the cluster at
once: its workers start there when a node takes it, and episodes go on in the workers that are left. A place that no
node takes within `patience` is given up; when none is left, there is nowhere to start a worker, which is an error.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.cluster.envs.node import EnvNode, NodeConnection, Remote
from turnwise.envs.workers.protocol import Birth
from turnwise.errors import RunError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """Reserved room for so many workers on one node, and how an actor is started in it, there or wherever the cluster
    has moved it to."""

    workers: int
    start: Callable[[], Remote]


class NodeNursery:
    """`NodeNursery(birth, rooms, patience=180, leave=...)`; `leave` frees the rooms at the end."""

    def __init__(
        self, birth: Birth, rooms: Sequence[Room], *, patience: float, leave: Callable[[], None] = lambda: None
    ) -> None:
        self._birth, self._patience, self._leave = birth, patience, leave
        self._nodes = {room: self._open(room) for room in rooms}

    def start(self) -> NodeConnection:
        """A worker on the node with the most room, one that is there rather than one that is awaited."""
        self._replace_lost()
        if not self._nodes:
            raise RunError(
                f"env.workers_on: no node has had room for environment workers for {self._patience:g} seconds: add "
                "nodes, then resume the run"
            )
        return max(self._nodes.values(), key=lambda node: (node.free > 0, bool(node.name), node.free)).start()

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()
        self._leave()

    def _replace_lost(self) -> None:
        for room, node in list(self._nodes.items()):
            if node.end is None:
                continue
            if node.name:
                self._nodes[room] = self._open(room)
            else:
                del self._nodes[room]
                _logger.warning("%d environment workers are given up: %s", room.workers, node.end.words)

    def _open(self, room: Room) -> EnvNode:
        return EnvNode(room.start, self._birth, capacity=room.workers, patience=self._patience)
