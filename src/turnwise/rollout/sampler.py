"""Which items a step works on: tasks of a training step, demonstrations of a cold start.

Invariant: what a step draws follows from (seed, step) alone, so a resumed run draws what the unbroken one would have.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from turnwise.errors import EnvError
from turnwise.seeds import derive_seed

T = TypeVar("T")


class Shuffled(Generic[T]):
    """Goes through all items in a random order, then through all again in another."""

    def __init__(self, items: Sequence[T], *, per_step: int, seed: int) -> None:
        if not len(items):
            raise EnvError("there is nothing to sample: give the environment tasks, or pass tasks=[...]")
        self._items, self._per_step, self._seed = items, per_step, seed
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def draw(self, step: int) -> list[T]:
        """The items of step 0, 1, ...: `per_step` of them."""
        size = len(self._items)
        places = range(step * self._per_step, (step + 1) * self._per_step)
        return [self._items[int(self._order(place // size)[place % size])] for place in places]

    def _shuffle(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng(derive_seed(self._seed, "epoch", epoch)).permutation(len(self._items))
