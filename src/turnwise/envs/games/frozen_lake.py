"""RAGEN's FrozenLake: cross the ice to the goal, past the holes, on a map of its own for every task.

Invariant: map, start and goal come from the task's seed and slips from the episode's; and the goal can be reached
within the actions that an episode allows, if no step slips.
"""

import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, Unpack, get_args

from turnwise.envs.games.game import GameOptions, Move, TextGame, check_count, of_same_split
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Task

ACTIONS = ("Up", "Right", "Down", "Left")
"""Clockwise, so that the neighbours of an action in this list are the two ways to slip."""
View: TypeAlias = Literal["map", "words"]
LARGEST = 16
MOST_REDRAWS = 1000
_FAR = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A map; cells are numbered row by row from the top left."""

    size: int
    holes: frozenset[int]
    start: int
    goal: int
    distances: tuple[int, ...]
    """How many steps each cell is from the goal, around the holes; 1,000,000 where no way leads there."""

    def place(self, cell: int) -> tuple[int, int]:
        """`(row, column)`, both from 0."""
        return divmod(cell, self.size)


class FrozenLake(TextGame):
    """`FrozenLake(size=4, slippery=True)`: a step goes as intended one time in three, else to either side of that."""

    actions = ACTIONS

    def __init__(
        self,
        *,
        size: int = 4,
        slippery: bool = True,
        frozen: float = 0.8,
        expert_reasons: bool = False,
        view: View = "map",
        **shared: Unpack[GameOptions],
    ) -> None:
        """Chooses the kind of lake.

        Args:
            size: The side of the square, from 2 to 16; a larger one needs more `max_actions`.
            slippery: A step goes sideways two times in three.
            frozen: The chance that a cell is ice and not a hole.
            expert_reasons: The expert's thoughts say what its step follows from, too: what is around the player, how
                far each cell is from the goal, and how many holes a step can end in.
            view: `map` draws the lake; `words` says which neighbours are holes and where the goal is from here, such
                as `Holes: Left. Goal: Down 2, Right 1.`, for models too small to read a drawing.
            shared: What all games share.
        """
        super().__init__(**shared)
        check_count("size", size, least=2)
        if size > LARGEST:
            raise EnvError(f"size is {size}; the largest lake is {LARGEST} × {LARGEST}")
        if view not in get_args(View):
            raise EnvError(f"view is '{view}'; it is one of: {', '.join(get_args(View))}")
        if view == "words" and "truth" in (shared.get("reasoning") or {}):
            raise EnvError("reasoning cannot pay 'truth' where view is words, which names no places: remove it")
        if not 0 < frozen <= 1:
            raise EnvError(f"frozen is {frozen}; it is a chance, above 0 and up to 1")
        self._size, self._slippery, self._frozen, self._view = size, slippery, frozen, view
        self._expert_reasons = expert_reasons

    def begin(self, task: Task, episode_seed: int) -> None:
        self._lake = make_lake(task.seed, self._size, self._frozen, self._max_actions)
        self._marks = _draw(self._lake)
        self._cell = self._lake.start
        self._slips = random.Random(derive_seed(episode_seed, "slips"))

    def rules(self) -> str:
        slips = " Ice is slippery: a step may go sideways." if self._slippery else ""
        if self._view == "words":
            lake = f"Go to the goal, which pays 1. A hole ends it.{slips}"
        else:
            places = " Places are (row, column) from (0, 0)." if self._think else ""
            lake = f"P: you. G: goal, pays 1. O: hole, ends it. _: ice.{slips}{places}"
        return f"{lake}\nActions: {', '.join(ACTIONS)}"

    def show(self) -> str:
        return self._tell() if self._view == "words" else self._map()

    def play(self, action: str) -> Move:
        lake, before = self._lake, self._cell
        direction = ACTIONS.index(action)
        if self._slippery:
            direction = (direction + self._slips.randrange(-1, 2)) % 4
        self._cell = cell = _neighbours(lake.size)[before][direction]
        won = cell == lake.goal
        return Move(reward=float(won), done=won or cell in lake.holes, success=won, moved=cell != before)

    def plan(self) -> list[str]:
        """The shortest way; on slippery ice the best step alone, for the next depends on where it leads."""
        lake, cell, left = self._lake, self._cell, self.actions_left
        if self._slippery:
            return [ACTIONS[best_steps(lake, self._max_actions)[left - 1][cell]]]
        way: list[str] = []
        while lake.distances[cell]:
            around = _neighbours(lake.size)[cell]
            direction = min(range(4), key=lambda turn: lake.distances[around[turn]])
            way.append(ACTIONS[direction])
            cell = around[direction]
        return way

    def explain(self) -> str:
        player, goal = self._lake.place(self._cell), self._lake.place(self._lake.goal)
        places = f"The player is at {player}. The goal is at {goal}."
        if self._view == "words":
            places = f"The goal is {self._way_to_goal()}."
        return f"{places} {self._give_reasons()}" if self._expert_reasons else places

    def _give_reasons(self) -> str:
        """`"Up is ice, 3 to go. Right is a hole. ... Holes in reach: Up 1, Right 1, Down 1, Left 0."`"""
        lake, around = self._lake, _neighbours(self._lake.size)[self._cell]
        cells = [f"{action} is {self._describe(cell)}." for action, cell in zip(ACTIONS, around, strict=True)]
        if not self._slippery:
            return " ".join(cells)
        hole = [cell in lake.holes for cell in around]
        reach = [f"{way} {hole[turn - 1] + hole[turn] + hole[(turn + 1) % 4]}" for turn, way in enumerate(ACTIONS)]
        return f"{' '.join(cells)} Holes in reach: {', '.join(reach)}."

    def _describe(self, cell: int) -> str:
        """A cell beside the player, or the player's own, where a step meets the edge."""
        lake = self._lake
        if cell in lake.holes or cell == lake.goal:
            return "a hole" if cell in lake.holes else "the goal"
        ground = "the edge" if cell == self._cell else "ice"
        return f"{ground}, {lake.distances[cell]} to go" if lake.distances[cell] < _FAR else f"{ground}, no way on"

    def facts(self) -> dict[str, tuple[int, int]]:
        lake = self._lake
        holes = {f"hole {number}": lake.place(cell) for number, cell in enumerate(sorted(lake.holes), 1)}
        return {"player": lake.place(self._cell), "goal": lake.place(lake.goal)} | holes

    def state_key(self) -> str:
        return self._map()

    def _map(self) -> str:
        lake, cell = self._lake, self._cell
        marks = list(self._marks)
        marks[2 * cell] = "X" if cell in lake.holes else "√" if cell == lake.goal else "P"
        return "".join(marks)

    def _tell(self) -> str:
        """`Holes: Left. Goal: Down 2, Right 1.`, seen from where the player is."""
        lake, cell = self._lake, self._cell
        if cell in lake.holes or cell == lake.goal:
            return "You fell into a hole." if cell in lake.holes else "You are at the goal."
        around = zip(ACTIONS, _neighbours(lake.size)[cell], strict=True)
        holes = ", ".join(action for action, near in around if near in lake.holes) or "none"
        return f"Holes: {holes}. Goal: {self._way_to_goal()}."

    def _way_to_goal(self) -> str:
        """`Down 2, Right 1`, as if there were no holes."""
        (row, column), (goal_row, goal_column) = self._lake.place(self._cell), self._lake.place(self._lake.goal)
        down, right = goal_row - row, goal_column - column
        ways = {"Down": down, "Up": -down, "Right": right, "Left": -right}
        return ", ".join(f"{way} {steps}" for way, steps in ways.items() if steps > 0)


@lru_cache(maxsize=4096)
def make_lake(seed: int, size: int, frozen: float, reach: int) -> Lake:
    """The lake of a seed: drawn again until its goal is at most `reach` steps from its start.

    No lake is both trained and tested on, unless lakes are so small that one split would have none.
    """
    rng = random.Random(derive_seed(seed, "lake"))
    cells = range(size * size)
    for attempt in itertools.count():
        start, goal = rng.sample(cells, 2)
        holes = frozenset(cell for cell in cells if rng.random() >= frozen and cell not in (start, goal))
        distances = _measure(size, holes, goal)
        if distances[start] > reach:
            continue
        if attempt >= MOST_REDRAWS or of_same_split(seed, f"{size} {start} {goal} {sorted(holes)}"):
            return Lake(size=size, holes=holes, start=start, goal=goal, distances=distances)
    raise AssertionError("neighbours are always within reach")


@lru_cache(maxsize=1024)
def best_steps(lake: Lake, horizon: int) -> tuple[tuple[int, ...], ...]:
    """`best_steps(lake, 10)[left - 1][cell]`: the direction that makes success likeliest with `left` actions left.

    Value iteration, one sweep per action left. Where directions are equally likely to succeed, the nearer to the goal.
    """
    neighbours, cells = _neighbours(lake.size), range(lake.size**2)
    value = [float(cell == lake.goal) for cell in cells]
    policy: list[tuple[int, ...]] = []
    for _ in range(horizon):
        best = tuple(_likeliest(lake, value, neighbours[cell]) for cell in cells)
        value = [
            value[cell] if cell == lake.goal or cell in lake.holes else _chance(value, neighbours[cell], best[cell])
            for cell in cells
        ]
        policy.append(best)
    return tuple(policy)


def _likeliest(lake: Lake, value: Sequence[float], around: Sequence[int]) -> int:
    # Rounded, so that the order in which three numbers were added decides nothing.
    return max(range(4), key=lambda turn: (round(_chance(value, around, turn), 12), -lake.distances[around[turn]]))


def _chance(value: Sequence[float], around: Sequence[int], turn: int) -> float:
    """The mean over the step as intended and the two ways to slip."""
    return (value[around[turn - 1]] + value[around[turn]] + value[around[(turn + 1) % 4]]) / 3


def _measure(size: int, holes: frozenset[int], goal: int) -> tuple[int, ...]:
    """Steps to the goal from every cell, breadth first from the goal."""
    distances = [_FAR] * size**2
    distances[goal] = 0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for near in _neighbours(size)[cell]:
            if distances[near] == _FAR and near not in holes:
                distances[near] = distances[cell] + 1
                queue.append(near)
    return tuple(distances)


@lru_cache(maxsize=LARGEST)
def _neighbours(size: int) -> tuple[tuple[int, int, int, int], ...]:
    """Where each of the four actions leads from each cell; at the edge, nowhere else."""
    last = size - 1
    return tuple(
        (
            cell - size if cell >= size else cell,
            cell + 1 if cell % size < last else cell,
            cell + size if cell // size < last else cell,
            cell - 1 if cell % size else cell,
        )
        for cell in range(size**2)
    )


def _draw(lake: Lake) -> tuple[str, ...]:
    """The lake without its player: each cell's symbol, then the space or line end behind it."""
    marks: list[str] = []
    for cell in range(lake.size**2):
        marks.append("O" if cell in lake.holes else "G" if cell == lake.goal else "_")
        marks.append(" " if (cell + 1) % lake.size else "\n")
    return tuple(marks[:-1])
