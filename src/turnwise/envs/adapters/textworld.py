"""TextWorld's generated games: a game is made from the task's seed, once, and kept in a folder.

Invariant: the score that the game pays is its own, as a share of the most it can pay; success is the game's own `won`.
The expert plays TextWorld's winning policy from wherever the episode is.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

from turnwise.envs.adapters.child import require_package
from turnwise.envs.adapters.foreign_game import ForeignGame, WorldOptions
from turnwise.types import Json, Task


class TextWorld(ForeignGame):
    """`TextWorld(options={"nb_rooms": 3, "nb_objects": 5, "quest_length": 3})`, or a challenge by its name.

    Making a game takes seconds, so there are 200 to train on and 50 to test on unless you say more.
    """

    server = "turnwise.envs.adapters.worlds.textworld:TextWorldServer"

    def __init__(
        self,
        *,
        challenge: str | None = None,
        options: Mapping[str, Json] | None = None,
        grammar: Mapping[str, Json] | None = None,
        cache: str = "auto",
        **shared: Unpack[WorldOptions],
    ) -> None:
        """Reads the settings in a child process, to see that games can be made of them.

        Args:
            challenge: `coin_collector`, `treasure_hunter`, `simple` or `cooking`; by default, a quest in a world of
                its own.
            options: Of a quest: `nb_rooms`, `nb_objects`, `quest_length` and what else `textworld.GameOptions` has;
                of a challenge: the flags of `tw-make`, such as `{"level": 5}`.
            grammar: What `GrammarOptions` has: `{"theme": "basic", "only_last_action": true}`.
            cache: Where games are kept: `auto` is the user's cache, or `$TURNWISE_CACHE`; else a folder.
            shared: What all text adventures share.
        """
        require_package("textworld", "textworld")
        shared.setdefault("train_tasks", 200)
        shared.setdefault("test_tasks", 50)
        super().__init__(**shared)
        self.connect(
            {
                "cache": str(cache_folder(cache, "textworld")),
                "challenge": challenge,
                "options": dict(options or {}),
                "grammar": dict(grammar or {}),
            }
        )

    def setup(self, task: Task) -> dict[str, Json]:
        return {"seed": task.seed}


def cache_folder(where: str, family: str) -> Path:
    """`auto`: the family's folder in the user's own cache, or in $TURNWISE_CACHE where that is set; else the folder."""
    if where != "auto":
        return Path(where)
    if chosen := os.environ.get("TURNWISE_CACHE"):
        return Path(chosen) / family
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwise" / family
