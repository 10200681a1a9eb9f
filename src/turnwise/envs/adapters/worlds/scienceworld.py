"""ScienceWorld in its child process, which starts one Java machine for all its episodes.

Invariant: each episode has a simulator of its own in that machine. The gold path is the package's own, generated when a
task is loaded; it is followed command by command, whatever else was done in between. The process ends with its Java
machine, and its episodes go on in a new one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

from py4j.protocol import Py4JNetworkError
from scienceworld import ScienceWorldEnv

from turnwise.envs.adapters.worlds.server import WorldServer
from turnwise.types import Json

_PASSED = 100


class Simulator(Protocol):
    """What is used of the Java side, `scienceworld.runtime.pythonapi.PythonInterface`."""

    def load(self, task: str, variation: int, simplifications: str, gold_path: bool) -> None: ...

    def reset(self) -> None: ...

    def step(self, command: str) -> str: ...

    def getScore(self) -> float: ...

    def getCompleted(self) -> bool: ...

    def getTaskDescription(self) -> str: ...

    def getGoldActionSequence(self) -> list[str]: ...

    def getValidActionObjectCombinations(self) -> list[str]: ...


@dataclass(slots=True)
class Laboratory:
    """One episode: its simulator, and how far along the gold path it is."""

    simulator: Simulator
    gold: list[str]
    done: int = 0


class ScienceWorldServer(WorldServer[Laboratory]):
    """`ScienceWorldServer(simplifications="easy", mistake_score=-1.0, list_commands=False)`."""

    def __init__(self, simplifications: str, mistake_score: float, list_commands: bool) -> None:
        super().__init__()
        self._first = ScienceWorldEnv("")  # starts the Java machine, and ends it
        allowed = ["easy", *self._first.get_possible_simplifications()]
        for name in filter(None, simplifications.split(",")):
            if name not in allowed:
                raise LookupError(f"there is no simplification '{name}'; there are: {', '.join(allowed)}")
        self._simplifications, self._list_commands = simplifications, list_commands
        self._mistake_score = mistake_score
        self._idle: list[Simulator] = []

    def names(self) -> list[str]:
        """The tasks that there are."""
        return list(self._first.get_task_names())

    def variations(self, names: Sequence[str]) -> dict[str, dict[str, list[int]]]:
        """The variations of these tasks by split, as the package divides them."""
        found: dict[str, dict[str, list[int]]] = {}
        for task in names:
            # Its own lists are of the task that is loaded.
            self._first.load(task, 0, "")
            found[task] = {"train": self._first.get_variations_train(), "test": self._first.get_variations_test()}
        return found

    def open(self, name: str, setup: Mapping[str, Json], episode_seed: int) -> dict[str, Json]:
        with _end_with_java():
            return super().open(name, setup, episode_seed)

    def act(self, name: str, command: str) -> dict[str, Json]:
        with _end_with_java():
            return super().act(name, command)

    def make(self, setup: Mapping[str, Json]) -> Laboratory:
        simulator = self._idle.pop() if self._idle else self._start_simulator()
        simulator.load(cast(str, setup["task"]), cast(int, setup["variation"]), self._simplifications, True)
        simulator.reset()
        return Laboratory(simulator=simulator, gold=list(simulator.getGoldActionSequence()))

    def start(self, world: Laboratory) -> dict[str, Json]:
        seen = world.simulator.step("look around")
        return self._view(world, seen) | {"objective": str(world.simulator.getTaskDescription())}

    def play(self, world: Laboratory, command: str) -> dict[str, Json]:
        if world.done < len(world.gold) and command == world.gold[world.done]:
            world.done += 1
        return self._view(world, world.simulator.step(command))

    def end(self, world: Laboratory) -> None:
        self._idle.append(world.simulator)

    def _start_simulator(self) -> Simulator:
        return cast(Simulator, self._first._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface())

    def _view(self, world: Laboratory, text: str) -> dict[str, Json]:
        simulator = world.simulator
        score = round(_PASSED * simulator.getScore())
        # As the package's own `step` has it: a score below zero is a mistake that ends the task.
        return {
            "text": text.replace("\t", " ").strip(),
            "commands": sorted(simulator.getValidActionObjectCombinations()) if self._list_commands else [],
            "plan": list(world.gold[world.done :]),
            "score": self._mistake_score if score < 0 else score / _PASSED,
            "won": score >= _PASSED,
            "done": bool(simulator.getCompleted()) or score < 0,
        }


@contextmanager
def _end_with_java() -> Iterator[None]:
    """Ends this process at once where its Java machine is gone, as when memory ran out: it would fail every episode."""
    try:
        yield
    except Py4JNetworkError:
        os._exit(1)
