"""A run's metrics as columns, read as they are appended, and what the page draws of them.

Invariant: a value drawn is the recorded one; a gap is null. Of long curves every stretch keeps its lowest and its
highest point, so that no spike is lost.
"""

import json
import math
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from turnwise.errors import TurnwiseError
from turnwise.studio.library import Run
from turnwise.studio.scan import TailReader
from turnwise.types import Json

_MOST_POINTS: Final = 2000
_ORDER: Final = ("train", "evaluate", "untrained", "sft", "end")
"""Where a metric has values in several stages, the first of these is drawn."""


@dataclass(slots=True)
class Stage:
    """The records of one stage as columns; a column may be shorter than the others: the rest is unknown."""

    step: "array[float]" = field(default_factory=lambda: array("d"))
    time: "array[float]" = field(default_factory=lambda: array("d"))
    columns: "dict[str, array[float]]" = field(default_factory=dict)
    _names: KeysView[str] | None = None
    _row: "list[tuple[str, array[float]]]" = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.step)

    def add(self, record: dict[str, object]) -> None:
        place = len(self.step)
        self.step.append(_number(record.get("step")))
        self.time.append(_number(record.get("time")))
        if record.keys() != self._names:  # most records have the names of the one before
            self._names = record.keys()
            self._row = [(name, self._begin(name, place)) for name in record if "/" in name]
        for name, column in self._row:
            value = record[name]
            column.append(value if type(value) is float else _number(value))

    def _begin(self, name: str, place: int) -> "array[float]":
        """The column of a name, filled up to this place."""
        column = self.columns.setdefault(name, array("d"))
        column.extend([math.nan] * (place - len(column)))
        return column

    def column(self, name: str, start: int = 0) -> list[float]:
        """One value per record from a place on; NaN where it has none."""
        known = self.columns.get(name, array("d"))[start:]
        return [*known, *[math.nan] * (len(self) - start - len(known))]

    def total(self, name: str) -> float:
        return math.fsum(value for value in self.columns.get(name, ()) if math.isfinite(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How much of a run's metrics a page has: `Mark(reading=17, records=400, names=120)`."""

    reading: int
    """Another one whenever the file is read from its start: what a page has may be gone from it."""
    records: int
    names: int


class Curves:
    """All metrics of one run; `update` reads what is new."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._tail = TailReader(run.directory.metrics)
        self.lock = threading.RLock()
        """To be held while its columns are read."""
        self._bad_lines: list[int] = []
        self._lines = 0
        self._reading = time.time_ns()
        self.stages: dict[str, Stage] = {}
        self.order: list[tuple[str, int]] = []
        """Every record in the order it was written: its stage and its place there."""

    def update(self) -> list[str]:
        """Reads what was appended; returns what could not be read."""
        with self.lock:
            try:
                if not self._run.metrics.is_file():
                    return ["metrics.jsonl is not there yet"]
                lines, anew = self._tail.read()
            except (OSError, TurnwiseError) as error:
                return [f"metrics.jsonl cannot be read: {error}"]
            if anew:
                self.stages, self.order, self._bad_lines, self._lines = {}, [], [], 0
                self._reading = time.time_ns()
            for line in lines:
                self._lines += 1
                self._add(line)
            return self._problems()

    def _problems(self) -> list[str]:
        if not self._bad_lines:
            return []
        shown = ", ".join(map(str, self._bad_lines[:5]))
        more = f" and {len(self._bad_lines) - 5} more" if len(self._bad_lines) > 5 else ""
        return [f"metrics.jsonl: left out what is no record: line {shown}{more}"]

    def _add(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not {"step", "stage"} <= record.keys():
            self._bad_lines.append(self._lines)
            return
        name = str(record["stage"])
        stage = self.stages.setdefault(name, Stage())
        self.order.append((name, len(stage)))
        stage.add(record)

    def names(self) -> list[Json]:
        """`[{"name": "rollout/reward", "stages": ["train"]}, ...]`, without the ledger, which has a page of its own."""
        found: dict[str, list[str]] = {}
        for stage in sorted(self.stages, key=_rank):
            for name in self.stages[stage].columns:
                if not name.startswith("ledger/"):
                    found.setdefault(name, []).append(stage)
        return [{"name": name, "stages": stages} for name, stages in sorted(found.items())]

    @property
    def mark(self) -> Mark:
        names = sum(len(stage.columns) for stage in self.stages.values())
        return Mark(reading=self._reading, records=len(self.order), names=names)

    def places_after(self, mark: Mark) -> dict[str, int]:
        """By stage, the place of the first record that was read after a mark of this reading."""
        added = Counter(stage for stage, _ in self.order[mark.records :])
        return {name: len(stage) - added[name] for name, stage in self.stages.items()}

    def series(self, name: str, places: Mapping[str, int] | None = None) -> dict[str, Json] | None:
        """One curve with its interval, where the metric has one; None where the run has no such metric.

        `places` says from which of a stage's records on; all by default.
        """
        stage = next((one for one in sorted(self.stages, key=_rank) if name in self.stages[one].columns), None)
        if stage is None:
            return None
        records = self.stages[stage]
        start = 0 if places is None else places[stage]
        values = records.column(name, start)
        kept = keep_extremes(values, _MOST_POINTS)
        drawn: dict[str, Json] = {"name": name, "stage": stage, "value": _nulls(values, kept)}
        drawn |= {"step": _nulls(records.step[start:], kept), "time": _nulls(records.time[start:], kept)}
        for side in ("low", "high"):
            if f"{name}_{side}" in records.columns:
                drawn[side] = _nulls(records.column(f"{name}_{side}", start), kept)
        return drawn


def keep_extremes(values: Sequence[float], most: int) -> list[int]:
    """The places of at most so many values: the first, the last, and the lowest and highest of each stretch."""
    if len(values) <= most:
        return list(range(len(values)))
    kept = {0, len(values) - 1}
    stretches = max(1, (most - 2) // 2)
    for place in range(stretches):
        start, end = place * len(values) // stretches, (place + 1) * len(values) // stretches
        known = [one for one in range(start, end) if math.isfinite(values[one])]
        if known:
            kept |= {min(known, key=values.__getitem__), max(known, key=values.__getitem__)}
    return sorted(kept)


def _rank(stage: str) -> int:
    return _ORDER.index(stage) if stage in _ORDER else len(_ORDER)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _nulls(values: Sequence[float], places: Iterable[int]) -> list[Json]:
    return [values[place] if math.isfinite(values[place]) else None for place in places]
