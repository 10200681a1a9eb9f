"""Shortest solutions of Sokoban in moves, found exactly: A* in which one node holds many players at once.

Invariant: with the verdict SOLVED no other plan is shorter; UNSOLVABLE is a proof; GAVE_UP means nothing for the level.

Where the boxes stand, the players who need equally many moves are one mask, and a step of all of them is four shifts.
The bound (the cheapest matching of boxes to targets by pushes on an empty board) depends on the boxes alone and changes
by at most one with a push, so it is consistent: an expanded node was reached by a shortest path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from heapq import heappop, heappush

from turnwise.envs.games.sokoban.levels import DIRECTIONS, Level, cells_of, offsets


class Verdict(StrEnum):
    """How a search ended."""

    SOLVED = "solved"
    UNSOLVABLE = "unsolvable"
    """Every position that can be reached was seen, or ruled out by a box that no push can save."""
    GAVE_UP = "gave_up"
    """The limit of nodes came first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found: `Search(verdict=Verdict.SOLVED, moves=(RIGHT, RIGHT), nodes=3)`."""

    verdict: Verdict
    moves: tuple[int, ...] = ()
    """Directions the player goes in; empty unless solved."""
    nodes: int
    """How many nodes were expanded."""


def solve(level: Level, *, limit: int = 200_000) -> Search:
    """The shortest plan in moves from where the level stands, or the proof that there is none."""
    frontier = _Frontier(level)
    frontier.add(level.boxes, 0, 1 << level.player)
    nodes = 0
    while (node := frontier.pop()) is not None:
        boxes, moves, players = node
        if boxes == level.targets:
            return Search(verdict=Verdict.SOLVED, moves=frontier.trace(boxes, moves), nodes=nodes)
        if nodes == limit:
            return Search(verdict=Verdict.GAVE_UP, nodes=nodes)
        nodes += 1
        frontier.expand(boxes, moves, players)
    return Search(verdict=Verdict.UNSOLVABLE, nodes=nodes)


class _Frontier:
    """The open and the settled positions of one search; a node is (boxes, moves made) with a mask of players."""

    def __init__(self, level: Level) -> None:
        self._width = level.width
        self._floor = level.floor
        self._pushes = _pushes_to_targets(level.width, level.floor, level.targets)
        self._bounds: dict[int, int | None] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._open: dict[tuple[int, int], int] = {}
        self._settled: dict[int, int] = {}
        self._layers: dict[tuple[int, int], int] = {}

    def add(self, boxes: int, moves: int, players: int) -> None:
        """Opens positions, unless the boxes are past saving."""
        node = (boxes, moves)
        if node in self._open:
            self._open[node] |= players
            return
        if boxes not in self._bounds:
            self._bounds[boxes] = _matching(boxes, self._pushes)
        bound = self._bounds[boxes]
        if bound is not None:
            self._open[node] = players
            # Of equal totals the fewest moves come first: a push can open a node of the same total, one move on.
            heappush(self._heap, (moves + bound, moves, boxes))

    def pop(self) -> tuple[int, int, int] | None:
        """The next node with players not settled before, which settles them; None when no node is left."""
        while self._heap:
            _, moves, boxes = heappop(self._heap)
            players = self._open.pop((boxes, moves)) & ~self._settled.get(boxes, 0)
            if players:
                self._settled[boxes] = self._settled.get(boxes, 0) | players
                self._layers[boxes, moves] = players
                return boxes, moves, players
        return None

    def expand(self, boxes: int, moves: int, players: int) -> None:
        width, free, moves = self._width, self._floor & ~boxes, moves + 1
        up, down, left, right = players >> width, players << width, players >> 1, players << 1
        walked = (up | down | left | right) & free & ~self._settled[boxes]
        if walked:
            self.add(boxes, moves, walked)
        # A box is pushed where a player stands behind it and the cell beyond it is free.
        for box in cells_of(up & boxes & free << width):
            self.add(boxes ^ (1 << box | 1 << box - width), moves, 1 << box)
        for box in cells_of(down & boxes & free >> width):
            self.add(boxes ^ (1 << box | 1 << box + width), moves, 1 << box)
        for box in cells_of(left & boxes & free << 1):
            self.add(boxes ^ (1 << box | 1 << box - 1), moves, 1 << box)
        for box in cells_of(right & boxes & free >> 1):
            self.add(boxes ^ (1 << box | 1 << box + 1), moves, 1 << box)

    def trace(self, boxes: int, moves: int) -> tuple[int, ...]:
        """The way to the first player of a settled node, by stepping back through the layers."""
        player = next(cells_of(self._layers[boxes, moves]))
        way: list[int] = []
        for made in range(moves, 0, -1):
            boxes, player, direction = self._step_back(boxes, player, made - 1)
            way.append(direction)
        return tuple(reversed(way))

    def _step_back(self, boxes: int, player: int, moves: int) -> tuple[int, int, int]:
        """A position one move earlier that was settled after `moves` moves, and the direction taken from it."""
        for direction, step in zip(DIRECTIONS, offsets(self._width), strict=True):
            before = player - step
            if self._layers.get((boxes, moves), 0) >> before & 1:
                return boxes, before, direction
            if boxes >> player + step & 1:
                pulled = boxes ^ (1 << player + step | 1 << player)
                if self._layers.get((pulled, moves), 0) >> before & 1:
                    return pulled, before, direction
        raise AssertionError("every settled position but the first was reached from a settled one")


def _matching(boxes: int, pushes: Sequence[Sequence[tuple[int, int]]]) -> int | None:
    """The fewest pushes that bring every box to a target of its own on an empty board; None when none do."""
    costs = {0: 0}
    for box in cells_of(boxes):
        taken_costs: dict[int, int] = {}
        for taken, cost in costs.items():
            for target, distance in pushes[box]:
                if not taken & target:
                    now = taken | target
                    taken_costs[now] = min(taken_costs.get(now, cost + distance), cost + distance)
        costs = taken_costs
    return min(costs.values(), default=None)


@lru_cache(maxsize=1024)
def _pushes_to_targets(width: int, floor: int, targets: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For every cell the (target's bit, pushes) a lone box there can be brought to; none on a dead square."""
    reach: list[list[tuple[int, int]]] = [[] for _ in range(floor.bit_length())]
    for target in cells_of(targets):
        seen = layer = 1 << target
        distance = 0
        while layer:
            for cell in cells_of(layer):
                reach[cell].append((1 << target, distance))
            layer = _pulled(layer, floor, width) & ~seen
            seen |= layer
            distance += 1
    return tuple(map(tuple, reach))


def _pulled(boxes: int, floor: int, width: int) -> int:
    """Where lone boxes can have been one push earlier: the cell they left and the player's cell behind it are floor."""
    up, down, left, right = boxes << width, boxes >> width, boxes << 1, boxes >> 1
    return floor & (up & floor >> width | down & floor << width | left & floor >> 1 | right & floor << 1)
