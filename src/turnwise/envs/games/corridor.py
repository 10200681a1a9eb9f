"""A corridor of rooms: a word is said once, early on, and asked for at the door at its end.

Invariant: the word is never in the opening message, so that a conversation which is compacted on the way keeps it only
in a summary. The words of an episode differ and are drawn alike, so that only having read it tells the right one.
"""

import random
from typing import Unpack

from turnwise.envs.games.game import GameOptions, Move, TextGame, check_count
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.types import Message, Task

WORDS = (
    *("amber", "birch", "cedar", "coral", "delta", "ember", "fable", "grape", "hazel", "ivory", "jade", "koala"),
    *("lemon", "maple", "north", "olive", "pearl", "quartz", "river", "sable", "tiger", "umber", "violet", "willow"),
)
GO, SAY = "go", "say"
_SPARE_ACTIONS = 2


class Corridor(TextGame):
    """`Corridor(rooms=6)`: a guard says a word in the first room, a sign shows another one in each room after it.

    The expert sums up what the guard said; a share `careless` of its summaries keeps a sign in its place, and then the
    expert says at the door what it kept. So what is worth remembering is left to be learnt from the reward.
    """

    def __init__(self, *, rooms: int = 6, careless: float = 0.0, **shared: Unpack[GameOptions]) -> None:
        """Chooses the length of the way.

        Args:
            rooms: Rooms between the entrance and the door, from 2 to 24; each is one action.
            careless: The share of the expert's first summaries that keep a sign and not the guard's word.
            shared: What all games share; an episode allows two actions more than the way needs, unless you say more.
        """
        check_count("rooms", rooms, least=2)
        if rooms > len(WORDS):
            raise EnvError(f"rooms is {rooms}; there are words for {len(WORDS)}")
        if not 0 <= careless <= 1:
            raise EnvError(f"careless is {careless}; it is a share, from 0 to 1")
        shared.setdefault("max_actions_per_turn", 1)
        shared.setdefault("max_actions", rooms + 2 + _SPARE_ACTIONS)
        super().__init__(**shared)
        self._rooms, self._careless = rooms, careless

    def begin(self, task: Task, episode_seed: int) -> None:
        self._words = random.Random(derive_seed(task.seed, "corridor")).sample(WORDS, self._rooms)
        self._summing_up = random.Random(derive_seed(episode_seed, "summary"))
        self._room = 0
        self._kept = 0
        """The room whose word the expert remembers, less one."""
        self._summed_up = False

    def rules(self) -> str:
        return f"A guard says a word. The door asks for it.\nActions: {GO}, {SAY} WORD"

    def show(self) -> str:
        if self._room == 0:
            return "Entrance."
        if self._room > self._rooms:
            return "Door: what did the guard say?"
        return self._note(self._room - 1)

    def legal(self, text: str) -> str | None:
        first, _, word = " ".join(text.casefold().split()).partition(" ")
        if first == GO and not word:
            return GO
        return _saying(word) if first == SAY and word in WORDS else None

    def wander(self, rng: random.Random) -> str:
        return rng.choice((GO, _saying(rng.choice(WORDS))))

    def play(self, action: str) -> Move:
        """A word before the door, or no word at it, changes nothing; the first word at the door is the last action."""
        at_door = self._room > self._rooms
        if (action == GO) == at_door:
            return Move(moved=False)
        if action == GO:
            self._room += 1
            return Move()
        right = action == _saying(self._words[0])
        return Move(reward=float(right), done=True, success=right)

    def plan(self) -> list[str]:
        return [GO] if self._room <= self._rooms else [_saying(self._words[self._kept])]

    def explain(self) -> str:
        return "I should go on." if self._room <= self._rooms else f"It was {self._words[self._kept]}."

    def expert_summary(self) -> Message:
        """What the expert keeps of the way so far; what a first summary has left out, no later one can have."""
        seen = min(self._room, self._rooms)
        if not self._summed_up and seen > 1 and self._summing_up.random() < self._careless:
            self._kept = self._summing_up.randrange(1, seen)
        self._summed_up = True
        return Message(role="assistant", content=self._note(self._kept) if seen else "Nothing yet.")

    def state_key(self) -> str:
        return f"{self._room} {' '.join(self._words)}"

    def _note(self, place: int) -> str:
        return f"{'Sign shows' if place else 'Guard says'} {self._words[place]}."


def _saying(word: str) -> str:
    return f"{SAY} {word}"
