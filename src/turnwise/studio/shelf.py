"""What the studio keeps in memory of runs: every run's line, and the columns of those looked at last.

Invariant: memory is bounded by the number of runs looked at, whatever number there is; all of it can be read again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from turnwise.studio.curves import Curves
from turnwise.studio.episode import Tokenizers
from turnwise.studio.index import Index
from turnwise.studio.library import Library, Run
from turnwise.studio.scan import RunScan, what_differs
from turnwise.types import Json

T = TypeVar("T")

_MOST_CURVES: Final = 32
_MOST_INDEXES: Final = 6


class Recent(Generic[T]):
    """The values of the runs asked for last: `Recent(32, Curves)`."""

    def __init__(self, most: int, make: Callable[[Run], T]) -> None:
        self._most, self._make = most, make
        self._lock = threading.Lock()
        self._values: OrderedDict[str, T] = OrderedDict()

    def of(self, run: Run) -> T:
        with self._lock:
            if run.id not in self._values:
                self._values[run.id] = self._make(run)
            self._values.move_to_end(run.id)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
            return self._values[run.id]


class Shelf:
    """Everything that requests share."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.curves = Recent(_MOST_CURVES, Curves)
        self.indexes = Recent(_MOST_INDEXES, Index)
        self.tokenizers = Tokenizers()
        self._scans: dict[str, RunScan] = {}
        self._lock = threading.Lock()

    def list_runs(self) -> dict[str, Json]:
        """Every run with the settings in which it differs from the others."""
        with self._lock:
            runs = self.library.runs()
            self._scans = {run.id: self._scans.get(run.id) or RunScan(run) for run in runs}
            lines = [self._scans[run.id].describe() for run in runs]
            differs = what_differs(self._scans)
        keys = list(dict.fromkeys(key for settings in differs.values() for key in settings))
        described: list[Json] = [{**line, "differs": differs.get(str(line["id"]), {})} for line in lines]
        return {"runs": described, "differing": keys}

    def describe(self, run: Run) -> dict[str, Json]:
        """One run's line."""
        with self._lock:
            return self._scans.setdefault(run.id, RunScan(run)).describe()
