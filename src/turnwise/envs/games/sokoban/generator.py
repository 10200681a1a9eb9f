"""Makes Sokoban levels that can be solved: carve a room, put the boxes on their targets, play backwards.

Invariant: a level is a function of its recipe and its seed alone, and its shortest solution takes from `min_moves` to
`max_moves` moves, exactly: backward play goes layer by layer, so a position's layer is the length of its solution.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from turnwise.envs.games.sokoban.levels import Level, cells_of, offsets
from turnwise.errors import EnvError

_TURN = 0.35
"""The chance that the walk which carves a room takes a new direction at a step."""
_WIDEN = 0.5
"""The chance that it opens a cell beside its own: rooms wide enough to walk around a box."""
_MOST_IN_LAYER = 1000
"""A layer with more arrangements of boxes than this costs too much: the room is left for a narrower one."""
_ROOMS_PER_LENGTH = 20
_LENGTHS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRecipe:
    """What a level shall be like: `LevelRecipe(size=6, boxes=1, min_moves=3, max_moves=10)`."""

    size: int
    """Cells along an edge of the board, its walls included."""
    boxes: int
    min_moves: int
    max_moves: int

    def __post_init__(self) -> None:
        if not 5 <= self.size <= 16:
            raise EnvError(f"size is {self.size}; a generated board has from 5 to 16 cells along an edge")
        if not 1 <= self.boxes <= 4:
            raise EnvError(f"boxes is {self.boxes}; a generated level has from 1 to 4")
        if not 1 <= self.min_moves <= self.max_moves:
            raise EnvError(f"min_moves is {self.min_moves}; give a number from 1 to max_moves, {self.max_moves}")


def generate_level(recipe: LevelRecipe, seed: int) -> Level:
    """A level whose shortest solution has a length drawn evenly from the recipe's range, where rooms allow it."""
    rng = random.Random(seed)
    for _ in range(_LENGTHS):
        length = rng.randint(recipe.min_moves, recipe.max_moves)
        for _ in range(_ROOMS_PER_LENGTH):
            floor = _carve(recipe.size, rng)
            level = _play_back(floor, recipe, length, rng)
            if level is not None:
                return level
    raise EnvError(
        f"no {recipe.size}x{recipe.size} level with {recipe.boxes} boxes was found whose shortest solution takes "
        f"{recipe.min_moves} to {recipe.max_moves} moves; widen min_moves and max_moves"
    )


def _carve(size: int, rng: random.Random) -> int:
    """A connected room inside the walls, opened by a random walk that now and then widens its way."""
    inside = sum(((1 << size - 2) - 1) << row * size + 1 for row in range(1, size - 1))
    steps, area = offsets(size), inside.bit_count()
    cell = rng.choice(list(cells_of(inside)))
    step = rng.choice(steps)
    floor = 1 << cell
    for _ in range(rng.randint(3 * area // 4, 3 * area // 2)):
        if rng.random() < _TURN:
            step = rng.choice(steps)
        if inside >> cell + step & 1:
            cell += step
            floor |= 1 << cell
        else:
            step = rng.choice(steps)
        if rng.random() < _WIDEN:
            floor |= 1 << cell + rng.choice(steps) & inside
    return floor


def _play_back(floor: int, recipe: LevelRecipe, length: int, rng: random.Random) -> Level | None:
    """A start that takes exactly `length` moves to bring every box, none on a target yet, to targets drawn here."""
    cells = list(cells_of(floor))
    if len(cells) <= 2 * recipe.boxes:
        return None
    targets = sum(1 << cell for cell in rng.sample(cells, recipe.boxes))
    layer: dict[int, int] = {}
    for layer in islice(backward_layers(recipe.size, floor, targets), length):
        if not 0 < len(layer) <= _MOST_IN_LAYER:
            return None
    starts = [(boxes, players) for boxes, players in layer.items() if not boxes & targets]
    if not starts:
        return None
    boxes, players = rng.choice(starts)
    return Level(
        width=recipe.size,
        height=recipe.size,
        floor=floor,
        targets=targets,
        boxes=boxes,
        player=rng.choice(list(cells_of(players))),
    )


def backward_layers(width: int, floor: int, targets: int) -> Iterator[dict[int, int]]:
    """The positions that are 1, 2, ... moves from solved: by where the boxes stand, a mask of players.

    Without end: past the farthest position the layers are empty.
    """
    layer = {targets: floor & ~targets}
    settled = dict(layer)
    while True:
        before: dict[int, int] = {}
        for boxes, players in layer.items():
            _step_back(width, floor, boxes, players, before)
        layer = {}
        for boxes, players in before.items():
            known = settled.get(boxes, 0)
            if new := players & ~known:
                settled[boxes] = known | new
                layer[boxes] = new
        yield layer


def _step_back(width: int, floor: int, boxes: int, players: int, before: dict[int, int]) -> None:
    """Adds to `before` all that can have been one move earlier, by walking and by pulling a box along."""
    free = floor & ~boxes
    near_boxes = players & (boxes >> 1 | boxes << 1 | boxes >> width | boxes << width)
    walked = (players >> 1 | players << 1 | players >> width | players << width) & free
    before[boxes] = before.get(boxes, 0) | walked
    for step in offsets(width) if near_boxes else ():
        back = free << step if step > 0 else free >> -step
        ahead = boxes >> step if step > 0 else boxes << -step
        for player in cells_of(near_boxes & back & ahead):
            pulled = boxes ^ (1 << player + step | 1 << player)
            before[pulled] = before.get(pulled, 0) | 1 << player - step
