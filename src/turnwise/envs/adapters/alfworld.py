"""The ALFWorld engine on rooms of our own: household tasks in text, made from the task's seed, no download.

Invariant: a task is won by ALFRED's own goal, and pays 1 then. The expert plays the plan of ALFWorld's planner, made
anew from wherever the episode is.
"""

from collections.abc import Sequence
from typing import Unpack

from turnwise.envs.adapters.child import require_package
from turnwise.envs.adapters.foreign_game import ForeignGame, WorldOptions
from turnwise.envs.games.game import check_count
from turnwise.types import Json, Task


class AlfWorld(ForeignGame):
    """`AlfWorld(goals=["put", "clean", "heat"], receptacles=5, objects=4)`."""

    server = "turnwise.envs.adapters.worlds.alfworld:AlfWorldServer"

    def __init__(
        self,
        *,
        goals: Sequence[str] = ("put", "clean", "heat", "cool", "two", "light"),
        receptacles: int = 6,
        objects: int = 5,
        **shared: Unpack[WorldOptions],
    ) -> None:
        """Reads ALFRED's domain and grammar in a child process.

        Args:
            goals: The kinds of task, drawn anew for each room: to put an object somewhere (`put`), after it was
                cleaned in a sink (`clean`), heated in a microwave (`heat`) or cooled in a fridge (`cool`), to put two
                of them there (`two`), or to look at one under a lamp (`light`).
            receptacles: How many places a room has, or as many more as its goal needs.
            objects: How many things lie there, or as many more as its goal needs.
            shared: What all text adventures share.
        """
        require_package("alfworld", "alfworld")
        check_count("receptacles", receptacles, least=2)
        check_count("objects", objects)
        super().__init__(**shared)
        self.connect({"goals": list(goals), "receptacles": receptacles, "objects": objects})

    def setup(self, task: Task) -> dict[str, Json]:
        return {"seed": task.seed}
