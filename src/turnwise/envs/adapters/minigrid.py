"""MiniGrid's levels as games in text: the whole grid in letters or in words, and an expert that walks to the goal.

Invariant: the package is asked for when a game is made and never before. A level's own hash decides its split, so none
is both trained and tested on, unless there are so few that one split would have none. A letter means the same thing
throughout an episode.
"""

import hashlib
import importlib
import os
from collections.abc import Mapping, Sequence
from string import ascii_letters, digits
from typing import Final, Literal, TypeAlias, Unpack, cast, get_args

from turnwise.envs.adapters.child import require_package
from turnwise.envs.adapters.gymnasium import GymnasiumGame, World
from turnwise.envs.adapters.minigrid_way import STEPS, GridWorld, Place, Thing, find_way, things_of
from turnwise.envs.games.game import GameOptions, of_same_split
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Json, Task

ACTIONS: Final = ("Left", "Right", "Forward", "Pickup", "Drop", "Toggle", "Done")
"""In the order of MiniGrid's numbers; Left and Right turn on the spot."""
View: TypeAlias = Literal["grid", "words"]
MOST_REDRAWS: Final = 30
_ENDED_BY_DONE: Final = ("MiniGrid-GoToDoor", "MiniGrid-GoToObject")
"""In all other levels Done does nothing, and is left out."""
_AGENT: Final = (">", "v", "<", "^")
_FACING: Final = ("right", "down", "left", "up")
_FREE: Final = "."
_PLAIN: Final = {"wall": "#", "goal": "G", "lava": "~"}
"""Things whose colour says nothing."""
_LETTERS: Final = {
    "key": "K",
    "ball": "O",
    "box": "B",
    "floor": "F",
    "open door": "P",
    "closed door": "D",
    "locked door": "L",
}
"""What a kind of coloured thing is drawn as, unless one of another colour has taken the letter."""
_SPARE: Final = [letter for letter in ascii_letters + digits if letter not in {"v", "G", *_LETTERS.values()}]


class MiniGridGame(GymnasiumGame):
    """`MiniGridGame(id="MiniGrid-DoorKey-5x5-v0")`: a level of MiniGrid, seen whole.

    The expert goes the shortest way where a level has a goal square, and fetches keys and opens doors on it; elsewhere
    it plays at random. It does not foresee what moves by itself.
    """

    def __init__(
        self,
        *,
        id: str = "MiniGrid-Empty-Random-6x6-v0",
        options: Mapping[str, Json] | None = None,
        view: View = "grid",
        action_names: Sequence[str] | None = None,
        description: str = "",
        success_at: float | None = None,
        **shared: Unpack[GameOptions],
    ) -> None:
        """Makes the world once, to see that it can be made.

        Args:
            id: The name under which MiniGrid registers it.
            options: The arguments of `gymnasium.make`, such as `max_steps`.
            view: `grid` draws the level; `words` says what is beside the agent and where things are from it, such as
                `Ahead: wall. Left: free. Right: free. Goal: behind 2, left 1.`, for models too small to read a drawing.
            action_names: Other names for Left, Right, Forward, Pickup, Drop, Toggle and Done, as many as the level has.
            description: What the system message says before the mission.
            success_at: The sum of rewards that is a success; by default any above 0, which MiniGrid pays for a mission.
            shared: What all games share; `max_actions` is 100 unless given.
        """
        if view not in get_args(View):
            raise EnvError(f"view is '{view}'; it is one of: {', '.join(get_args(View))}")
        require_package("minigrid", "minigrid")
        # The package imports pygame, which greets on standard output.
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        importlib.import_module("minigrid")  # which registers its levels
        super().__init__(id=id, options=options, action_names=action_names, success_at=success_at, **shared)
        self._description, self._view = f"{description}\n" if description else "", view
        if not id.startswith(_ENDED_BY_DONE):
            self.actions = self.actions[: ACTIONS.index("Done")]

    def name_actions(self, name: str, numbers: Sequence[int]) -> Sequence[str]:
        if not name.startswith("MiniGrid-"):
            raise EnvError(f"{name} is no level of MiniGrid; name one such as MiniGrid-DoorKey-5x5-v0")
        return ACTIONS[: len(numbers)]

    def begin(self, task: Task, episode_seed: int) -> None:
        self._letters: dict[str, str] = {}
        super().begin(task, episode_seed)

    def draw_level(self, world: World, seed: int) -> object:
        """The level of a seed, drawn again until its hash is of the seed's split."""
        for attempt in range(MOST_REDRAWS):
            seen, _ = world.reset(seed=derive_seed(seed, "level", attempt) if attempt else seed)
            if of_same_split(seed, self.state_key()):
                break
        return seen

    def rules(self) -> str:
        mission = f"{self._description}Mission: {self._grid_world().mission}."
        symbols = "" if self._view == "words" else f"\n{self._symbols()}"
        return f"{mission}{symbols}\nActions: {', '.join(self.actions)}"

    def show(self) -> str:
        """The level, then what the agent carries."""
        carried = self._grid_world().carrying
        seen = self._tell() if self._view == "words" else self._draw()
        return seen if carried is None else f"{seen}\nYou carry: {name_thing(carried)}"

    def _symbols(self) -> str:
        """What the characters of the drawing mean, of those that no legend explains."""
        occur = {thing.type for thing in self._things().values()}
        lava = f" {_PLAIN['lava']}: lava, ends it." if "lava" in occur else ""
        goal = f" {_PLAIN['goal']}: goal." if "goal" in occur else ""
        edge = " Around it is wall." if self._margin() else ""
        return f"{' '.join(_AGENT)}: you, facing that way. {_FREE}: free. {_PLAIN['wall']}: wall.{goal}{lava}{edge}"

    def _draw(self) -> str:
        """The grid, then a legend of the coloured things in it."""
        world, things, margin = self._grid_world(), self._things(), self._margin()
        agent = _place_of(world)
        rows = []
        legend: dict[str, str] = {}
        for y in range(margin, world.grid.height - margin):
            row = []
            for x in range(margin, world.grid.width - margin):
                thing = things.get((x, y))
                if (x, y) == agent:
                    row.append(_AGENT[world.agent_dir])
                elif thing is None or thing.type in _PLAIN:
                    row.append(_PLAIN[thing.type] if thing else _FREE)
                else:
                    row.append(self._letter(thing))
                    legend[row[-1]] = name_thing(thing)
            rows.append(" ".join(row))
        if legend:
            rows.append(", ".join(f"{letter}: {name}" for letter, name in sorted(legend.items())))
        return "\n".join(rows)

    def _tell(self) -> str:
        """What is beside the agent, then the goal and all coloured things, seen from it."""
        world, things = self._grid_world(), self._things()
        (x, y), facing = _place_of(world), world.agent_dir
        beside = []
        for side, turn in (("Ahead", 0), ("Left", -1), ("Right", 1)):
            across, down = STEPS[(facing + turn) % 4]
            thing = things.get((x + across, y + down))
            beside.append(f"{side}: {_name(thing) if thing else 'free'}.")
        listed = [(place, thing) for place, thing in things.items() if thing.type not in ("wall", "lava")]
        where = [(_name(thing), _seen_from((x, y), facing, place)) for place, thing in listed]
        return " ".join((*beside, *(f"{name.capitalize()}: {way or 'here'}." for name, way in where)))

    def plan(self) -> list[str]:
        return [self.actions[ACTIONS.index(action)] for action in find_way(self._grid_world())]

    def explain(self) -> str:
        """In the terms of the view: places are (row, column) of the grid that is drawn, from (0, 0)."""
        world, margin = self._grid_world(), self._margin()
        agent, facing = _place_of(world), world.agent_dir
        goals = [place for place, thing in self._things().items() if thing.type == "goal"]
        if self._view == "words":
            return f"The goal is {_seen_from(agent, facing, goals[0])}." if goals else "There is no goal square."
        here, *there = [f"({y - margin}, {x - margin})" for x, y in (agent, *goals)]
        goal = f" The goal is at {there[0]}." if there else ""
        return f"The player is at {here}, facing {_FACING[facing]}.{goal}"

    def state_key(self) -> str:
        """A digest of all that the world holds, also of what the agent of MiniGrid would not see."""
        world = self._grid_world()
        lying = [(place, _content(thing)) for place, thing in self._things().items()]
        whole = repr((world.mission, _place_of(world), int(world.agent_dir), _content(world.carrying), lying))
        return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

    def _grid_world(self) -> GridWorld:
        return cast(GridWorld, self._inhabited().unwrapped)

    def _things(self) -> dict[Place, Thing]:
        return things_of(self._grid_world().grid)

    def _margin(self) -> int:
        """1 where the grid's edge is all wall, which need not be drawn."""
        grid, things = self._grid_world().grid, self._things()
        across = [(x, y) for x in range(grid.width) for y in (0, grid.height - 1)]
        down = [(x, y) for y in range(grid.height) for x in (0, grid.width - 1)]
        return int(all(place in things and things[place].type == "wall" for place in across + down))

    def _letter(self, thing: Thing) -> str:
        """What a coloured thing is drawn as, throughout the episode: its kind's letter, else one that is left."""
        name, taken = name_thing(thing), set(self._letters.values())
        if name not in self._letters:
            wanted = _LETTERS[name.replace(f"{thing.color} ", "")]
            self._letters[name] = next(letter for letter in (wanted, *_SPARE) if letter not in taken)
        return self._letters[name]


def _name(thing: Thing) -> str:
    return thing.type if thing.type in _PLAIN else name_thing(thing)


def _seen_from(agent: Place, facing: int, place: Place) -> str:
    """`ahead 2, left 1`; empty for the agent's own place."""
    across, down = place[0] - agent[0], place[1] - agent[1]
    (front_x, front_y), (right_x, right_y) = STEPS[facing], STEPS[(facing + 1) % 4]
    ahead, right = across * front_x + down * front_y, across * right_x + down * right_y
    ways = {"ahead": ahead, "behind": -ahead, "right": right, "left": -right}
    return ", ".join(f"{way} {steps}" for way, steps in ways.items() if steps > 0)


def name_thing(thing: Thing) -> str:
    """`yellow key`, `locked red door`."""
    if thing.type != "door":
        return f"{thing.color} {thing.type}"
    state = "open" if getattr(thing, "is_open", False) else "locked" if getattr(thing, "is_locked", False) else "closed"
    return f"{state} {thing.color} door"


def _place_of(world: GridWorld) -> Place:
    x, y = world.agent_pos
    return int(x), int(y)


def _content(thing: Thing | None) -> str:
    """A thing, and what is in it: `red box of blue key`."""
    if thing is None:
        return ""
    inside = getattr(thing, "contains", None)
    return f"{name_thing(thing)} of {_content(inside)}" if inside is not None else name_thing(thing)
