"""The shortest way to a goal square of MiniGrid, past lava, with keys fetched and doors opened on it.

Invariant: it reads the grid and changes nothing. It plans with what lies still: it moves no ball or box out of the way,
drops nothing, and looks into no box.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

Place: TypeAlias = tuple[int, int]
"""`(column, row)`, as MiniGrid has it."""
STEPS: Final = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""By direction: right, down, left, up; a turn to the right is the next one."""
_MOST_STATES: Final = 50_000


class Thing(Protocol):
    """What is used of `minigrid.core.world_object.WorldObj`; doors alone have `is_open` and `is_locked`."""

    type: str
    color: str


class Grid(Protocol):
    """What is used of `minigrid.core.grid.Grid`."""

    width: int
    height: int

    def get(self, i: int, j: int) -> Thing | None: ...


class GridWorld(Protocol):
    """What is used of `minigrid.minigrid_env.MiniGridEnv`."""

    grid: Grid
    agent_pos: Place
    agent_dir: int
    carrying: Thing | None
    mission: str


class _State(NamedTuple):
    """How far a plan has come."""

    place: Place
    direction: int
    held: Thing | None
    opened: frozenset[Place]


def things_of(grid: Grid) -> dict[Place, Thing]:
    """What lies where; free places are left out."""
    found = {(x, y): grid.get(x, y) for y in range(grid.height) for x in range(grid.width)}
    return {place: thing for place, thing in found.items() if thing is not None}


def find_way(world: GridWorld) -> list[str]:
    """The fewest actions that lead to a goal square, breadth first; empty where there is none, or none was found."""
    things = things_of(world.grid)
    if not any(thing.type == "goal" for thing in things.values()):
        return []
    column, row = world.agent_pos
    start = _State((int(column), int(row)), int(world.agent_dir), world.carrying, frozenset())
    came_from: dict[_State, tuple[_State, str] | None] = {start: None}
    queue = deque([start])
    while queue and len(came_from) < _MOST_STATES:
        state = queue.popleft()
        for action, following in _moves(state, things):
            if following in came_from:
                continue
            came_from[following] = (state, action)
            if action == "Forward" and _type(things, following.place) == "goal":
                return _trace(came_from, following)
            queue.append(following)
    return []


def _moves(state: _State, things: Mapping[Place, Thing]) -> Iterator[tuple[str, _State]]:
    """What can usefully be done next, and where it leads."""
    (x, y), (right, down) = state.place, STEPS[state.direction]
    ahead = (x + right, y + down)
    thing = things.get(ahead)
    yield "Left", state._replace(direction=(state.direction - 1) % 4)
    yield "Right", state._replace(direction=(state.direction + 1) % 4)
    if thing is None or thing is state.held or thing.type in ("goal", "floor") or _is_open(thing, ahead, state):
        yield "Forward", state._replace(place=ahead)
    elif thing.type == "key" and state.held is None:
        yield "Pickup", state._replace(held=thing)
    elif thing.type == "door" and (not getattr(thing, "is_locked", False) or _fits(state.held, thing)):
        yield "Toggle", state._replace(opened=state.opened | {ahead})


def _is_open(thing: Thing, place: Place, state: _State) -> bool:
    return thing.type == "door" and (getattr(thing, "is_open", False) or place in state.opened)


def _fits(held: Thing | None, door: Thing) -> bool:
    return held is not None and held.type == "key" and held.color == door.color


def _type(things: Mapping[Place, Thing], place: Place) -> str:
    thing = things.get(place)
    return thing.type if thing else ""


def _trace(came_from: Mapping[_State, tuple[_State, str] | None], state: _State) -> list[str]:
    """The actions from the start to a state."""
    way: list[str] = []
    while (before := came_from[state]) is not None:
        state, action = before
        way.append(action)
    return way[::-1]
