"""`WorldServer`: the episodes of one child process, by name, each with random states of its own.

Invariant: a package may draw from Python's and numpy's global generators; every episode finds them as it left them, so
episodes that share a process leave each other alone.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np

from turnwise.types import Json

W = TypeVar("W")
"""The package's own object for a world being played."""


class WorldServer(ABC, Generic[W]):
    """Write `make`, `start`, `play` and, where a world holds something, `end`; the views are those of `View`."""

    def __init__(self) -> None:
        self._worlds: dict[str, W] = {}
        self._states: dict[str, tuple[object, object]] = {}

    @abstractmethod
    def make(self, setup: Mapping[str, Json]) -> W:
        """The world of a task."""

    @abstractmethod
    def start(self, world: W) -> dict[str, Json]:
        """Begins it, and returns what is seen."""

    @abstractmethod
    def play(self, world: W, command: str) -> dict[str, Json]:
        """Does one command, and returns what is seen then."""

    def end(self, world: W) -> None:
        """Frees what the world holds."""
        return

    def ready(self) -> None:
        """Answers at all: what is wrong with the package or the settings was raised before."""

    def open(self, name: str, setup: Mapping[str, Json], episode_seed: int) -> dict[str, Json]:
        """Makes a world from `setup["seed"]` and begins it; from then on it draws from the episode's seed."""
        seed = setup["seed"]
        assert isinstance(seed, int), "every task has a seed"
        _set_seeds(seed)
        world = self.make(setup)
        view = self.start(world)
        _set_seeds(episode_seed)
        self._worlds[name], self._states[name] = world, (random.getstate(), np.random.get_state())
        return view

    def act(self, name: str, command: str) -> dict[str, Json]:
        """One command in the world that was opened under this name."""
        with self._own_randomness(name):
            return self.play(self._worlds[name], command)

    def close(self, name: str) -> None:
        """Forgets a world."""
        self._states.pop(name, None)
        world = self._worlds.pop(name, None)
        if world is not None:
            self.end(world)

    @contextmanager
    def _own_randomness(self, name: str) -> Iterator[None]:
        python, numpy = self._states[name]
        random.setstate(python)  # type: ignore[arg-type]  # as getstate gave it
        np.random.set_state(numpy)  # type: ignore[arg-type]  # as get_state gave it
        try:
            yield
        finally:
            self._states[name] = (random.getstate(), np.random.get_state())


def _set_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
