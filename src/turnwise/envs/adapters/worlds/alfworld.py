"""The ALFWorld engine in its child process: TextWorld's PDDL environment with ALFRED's domain, grammar and names.

Invariant: a room is drawn from the task's seed, and the hash of its problem decides its split, so none is both trained
and tested on. The planner, Fast Downward, plans anew after every command.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Protocol, cast

import fast_downward
import textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs.pddl import PddlEnv, textgen
from textworld.envs.pddl import logic as pddl_logic
from textworld.logic import Rule

from turnwise.envs.adapters.worlds.alfworld_rooms import GOALS, Room, draw_room, write_problem
from turnwise.envs.adapters.worlds.server import WorldServer
from turnwise.envs.games.game import of_same_split
from turnwise.seeds import derive_seed
from turnwise.types import Json

_WANTED = textworld.EnvInfos(admissible_commands=True, policy_commands=True, won=True, facts=True)
_MOST_DRAWS = 50
_KEPT_ROOMS = 64
_KEPT_TEXTS = 10_000
_POINTLESS = ("help",)
"""Commands that the engine lists and that tell nothing of the world."""


# The engine translates a problem four times to begin a room, and parses its grammar and the conditions in it for each
# command that it lists. That takes longer than to play, and is a function of its text: the child keeps the results.
fast_downward.pddl2sas = lru_cache(maxsize=2 * _KEPT_ROOMS)(fast_downward.pddl2sas)
_parse = lru_cache(maxsize=_KEPT_TEXTS)(textgen._parse_and_convert)
textgen._parse_and_convert = lambda *args, **options: copy.deepcopy(_parse(*args, **options))
Rule.parse_conjunctive_query = lru_cache(maxsize=_KEPT_TEXTS)(Rule.parse_conjunctive_query)


def _copy_context(context: Mapping[str, object]) -> dict[str, object]:
    """As the engine's own, which also copies the things that are named; deriving a text changes none of them."""
    named = {name: dict(cast(Mapping[str, object], context[name])) for name in ("variables", "mapping")}
    return {**context, **named}


textgen.copy_context = _copy_context


class State(Protocol):
    """What is used of `textworld.GameState`."""

    feedback: str
    admissible_commands: list[str]
    policy_commands: list[str] | None
    facts: list[object]
    won: bool


class Kitchen(PddlEnv):  # type: ignore[misc]  # the package has no types
    """`PddlEnv` with the domain and grammar read once for all rooms, and with ALFRED's names for things."""

    room: Room
    """The one being played."""

    def __init__(self, logic: object) -> None:
        super().__init__(_WANTED)
        self._logic = logic

    def enter(self, room: Room) -> State:
        """Begins a room."""
        self.room, self._game_data = room, {"pddl_problem": write_problem(room)}
        self._pddl_state = pddl_logic.PddlState(self.downward_lib, self._game_data["pddl_problem"], self._logic)
        self._entity_infos = self._get_entity_infos()
        demangler = Demangler(game_infos=self._entity_infos)
        for info in self._entity_infos.values():
            info.name = demangler.demangle_alfred_name(info.id).strip()
        return cast(State, self.reset())


class AlfWorldServer(WorldServer[Kitchen]):
    """`AlfWorldServer(goals=["put", "heat"], receptacles=5, objects=4)`."""

    def __init__(self, goals: Sequence[str], receptacles: int, objects: int) -> None:
        super().__init__()
        unknown = sorted(set(goals) - set(GOALS))
        if unknown or not goals:
            raise LookupError(f"there is no goal '{', '.join(unknown)}'; there are: {', '.join(GOALS)}")
        self._goals, self._receptacles, self._objects = goals, receptacles, objects
        folder = files("alfworld") / "data"
        self._domain, self._grammar = ((folder / name).read_text() for name in ("alfred.pddl", "alfred.twl2"))
        self._logic = pddl_logic.GameLogic(domain=self._domain, grammar=self._grammar)
        # Each holds a copy of the planner's library, which takes longer to load than a room.
        self._idle: list[Kitchen] = []

    def make(self, setup: Mapping[str, Json]) -> Kitchen:
        kitchen = self._idle.pop() if self._idle else Kitchen(self._logic)
        kitchen.room = self.draw(cast(int, setup["seed"]))
        return kitchen

    def start(self, world: Kitchen) -> dict[str, Json]:
        state = world.enter(world.room)
        seen = state.feedback.partition("\n\n")[2].partition("\n\n")[0]
        return _view(state, seen) | {"objective": f"Your task is to: {world.room.task}."}

    def play(self, world: Kitchen, command: str) -> dict[str, Json]:
        state, _, _ = world.step(command)
        return _view(state, state.feedback)

    def end(self, world: Kitchen) -> None:
        self._idle.append(world)

    def draw(self, seed: int) -> Room:
        """The room of a task: the first of its split."""
        for number in range(_MOST_DRAWS):
            room = draw_room(derive_seed(seed, "alfworld", number), self._goals, self._receptacles, self._objects)
            if of_same_split(seed, write_problem(room)):
                break
        return room

    def game_file(self, seed: int) -> str:
        """The room as ALFWorld's own game file, `game.tw-pddl`, walkthrough included."""
        kitchen = self.make({"seed": seed})
        room = kitchen.room
        plan = self.start(kitchen)["plan"]
        self.end(kitchen)
        return json.dumps(
            {
                "pddl_domain": self._domain,
                "grammar": self._grammar.replace("UNKNOWN GOAL", room.task),
                "pddl_problem": write_problem(room),
                "solvable": True,
                "walkthrough": plan,
            }
        )


def _view(state: State, text: str) -> dict[str, Json]:
    facts = "\n".join(sorted(map(str, state.facts)))
    won = bool(state.won)
    return {
        "text": text.strip(),
        "commands": [one for one in state.admissible_commands if one not in _POINTLESS],
        "plan": list(state.policy_commands or ()),
        "score": float(won),
        "won": won,
        "done": won,
        "key": hashlib.blake2b(facts.encode(), digest_size=16).hexdigest(),
    }
