"""ScienceWorld's thirty elementary-science tasks: the variations of train and test are the package's own.

Invariant: the reward is the change of the package's score, as a share of 100, and a task is passed at 100. The expert
follows the gold path. The simulator is Java: it runs in a machine of its own behind the child process.
"""

import shutil
from collections.abc import Sequence
from functools import cached_property
from typing import Unpack, cast

from turnwise.envs.adapters.child import require_package
from turnwise.envs.adapters.foreign_game import ForeignGame, WorldOptions
from turnwise.envs.games.game import SPLITS
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed
from turnwise.spelling import suggest
from turnwise.types import Json, Task


class ScienceWorld(ForeignGame):
    """`ScienceWorld(names=["find-animal"], simplifications="easy")`; it needs Java."""

    server = "turnwise.envs.adapters.worlds.scienceworld:ScienceWorldServer"

    def __init__(
        self,
        *,
        names: Sequence[str] | None = None,
        simplifications: str = "easy",
        mistake_score: float = -1.0,
        **shared: Unpack[WorldOptions],
    ) -> None:
        """Starts the Java machine, and lists the variations of each task.

        Args:
            names: The tasks, such as `boil` or `find-animal`; all thirty by default.
            simplifications: As ScienceWorld names them, with commas between: `easy` is all of them.
            mistake_score: The score after a mistake that ends a task, such as to focus on the wrong thing; -1 as in the
                package. 0 takes back what was scored and no more, so that to try nothing is not better than to err.
            shared: What all text adventures share. Here the world's own parser reads every command, unless
                `show_commands` lists the possible ones, which are hundreds. The counts of tasks are those of the
                package, cut to `train_tasks` and `test_tasks`.
        """
        require_package("scienceworld", "scienceworld")
        if shutil.which("java") is None:
            raise EnvError("ScienceWorld needs Java, and there is none; install a Java runtime, such as openjdk-17")
        shared.setdefault("show_commands", False)
        shared.setdefault("listed_only", shared["show_commands"])
        shared.setdefault("max_actions", 100)
        super().__init__(**shared)
        listing = self._show_commands or self._listed_only
        self.connect({"simplifications": simplifications, "mistake_score": mistake_score, "list_commands": listing})
        child = self._children.assign()
        known = cast(list[str], child.call("names"))
        for name in names or ():
            if name not in known:
                raise EnvError(f"there is no task '{name}'{suggest(name, known)}; there are: {', '.join(known)}")
        listed = child.call("variations", list(names or known))
        self._variations = cast(dict[str, dict[str, list[int]]], listed)

    @cached_property
    def _listed(self) -> dict[str, tuple[Task, ...]]:
        return {split: tuple(self._list(split)) for split in SPLITS}

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in self._sizes:
            raise EnvError(f"there is no split '{split}'; the splits are: {', '.join(SPLITS)}")
        return self._listed[split]

    def _list(self, split: str) -> list[Task]:
        """In an order of our own, so that the first few are of several tasks."""
        pairs = [(name, number) for name, splits in self._variations.items() for number in splits[split]]
        pairs.sort(key=lambda pair: derive_seed(f"scienceworld/{self._seed}", *pair))
        return [
            Task(
                id=f"{split}-{name}-{number}",
                seed=derive_seed("scienceworld", name, number),
                data={"task": name, "variation": number},
            )
            for name, number in pairs[: self._sizes[split]]
        ]

    def setup(self, task: Task) -> dict[str, Json]:
        return {"seed": task.seed, **task.data}
