"""Tasks that are made when they are asked for: however many there are, they cost nothing before."""

from collections.abc import Callable, Sequence
from typing import overload

from turnwise.types import Task


class LazyTasks(Sequence[Task]):
    """`LazyTasks(lambda place: Task(id=str(place), seed=place), range(10_000))`; a slice of it is as lazy."""

    def __init__(self, make: Callable[[int], Task], places: range) -> None:
        self._make, self._places = make, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> "LazyTasks": ...
    def __getitem__(self, index: int | slice) -> "Task | LazyTasks":
        if isinstance(index, slice):
            return LazyTasks(self._make, self._places[index])
        return self._make(self._places[index])
