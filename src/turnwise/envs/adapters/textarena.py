"""TextArena's single-player games: Mastermind, Sudoku, 2048, Minesweeper and some twenty more.

Invariant: a game is paid when it ends, by TextArena's own reward, and a success is a reward of 1. An invalid move is
judged by the game: it warns once, and then ends. TextArena has no expert; where the actions of a game are given, one
that plays them at random shows how to answer.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Unpack

from turnwise.envs.adapters.child import require_package
from turnwise.envs.adapters.foreign_game import ForeignGame, WorldOptions
from turnwise.errors import EnvError
from turnwise.types import Json, Message, Task


class TextArena(ForeignGame):
    """`TextArena(game="GuessTheNumber-v0", options={"max_turns": 10})`."""

    noun = "action"
    server = "turnwise.envs.adapters.worlds.textarena:TextArenaServer"

    def __init__(
        self,
        *,
        game: str,
        options: Mapping[str, Json] | None = None,
        actions: Sequence[str] = (),
        **shared: Unpack[WorldOptions],
    ) -> None:
        """Begins the game once, to see that it is one, and for one player.

        Args:
            game: The name under which TextArena knows it, with its version: `Mastermind-v0`.
            options: The arguments of its class, in place of those that it is registered with.
            actions: What an agent may do in this game, `[up, down, left]`: listed in the system message, and played
                at random by the expert. Where none are given, there is no expert.
            shared: What all text adventures share. The game itself reads what the agent writes; brackets are added
                where it wrote none.
        """
        require_package("textarena", "textarena")
        shared.setdefault("show_commands", False)
        shared.setdefault("listed_only", False)
        shared.setdefault("max_actions", 100)
        super().__init__(**shared)
        self.actions = tuple(map(str, actions))
        self.connect({"game": game, "options": dict(options or {})})

    @property
    def has_expert(self) -> bool:
        return bool(self.actions)

    def expert(self) -> Message:
        if not self.actions:
            raise EnvError("TextArena has no expert: give the game's actions, or give sft a file of chats")
        return super().expert()

    def explain(self) -> str:
        return "I try something."

    def rules(self) -> str:
        listed = f"\nActions: {', '.join(self.actions)}" if self.actions else ""
        return f"{super().rules()}{listed}"

    def wander(self, rng: random.Random) -> str:
        return rng.choice(self.actions)

    def setup(self, task: Task) -> dict[str, Json]:
        return {"seed": task.seed}
