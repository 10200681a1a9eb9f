"""TextArena's single-player games: Mastermind, Sudoku, 2048, Minesweeper and some twenty more.

Invariant: a game is paid when it ends, by TextArena's own reward, and a success is a reward of 1. An invalid move is
judged by the game: it warns once, and then ends. There is no expert: TextArena has none.
"""

from collections.abc import Mapping
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
        **shared: Unpack[WorldOptions],
    ) -> None:
        """Begins the game once, to see that it is one, and for one player.

        Args:
            game: The name under which TextArena knows it, with its version: `Mastermind-v0`.
            options: The arguments of its class, in place of those that it is registered with.
            shared: What all text adventures share. The game itself reads what the agent writes; brackets are added
                where it wrote none.
        """
        require_package("textarena", "textarena")
        shared.setdefault("show_commands", False)
        shared.setdefault("listed_only", False)
        shared.setdefault("max_actions", 100)
        super().__init__(**shared)
        self.connect({"game": game, "options": dict(options or {})})

    @property
    def has_expert(self) -> bool:
        return False

    def expert(self) -> Message:
        raise EnvError("TextArena has no expert: give sft a file of chats instead")

    def setup(self, task: Task) -> dict[str, Json]:
        return {"seed": task.seed}
