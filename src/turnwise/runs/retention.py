"""Thins out the trajectories of a run that has many: by size, by age, and by interest.

Invariant: nothing is dropped uncounted: a file that was thinned says in its metadata of how many episodes it lacks the
numbers per token, and how many it lacks altogether. Failed episodes, the best and the worst of a step, evaluations,
demonstrations and the newest steps stay whole, whatever the limit.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.errors import RunError
from turnwise.runs.settings import TrajectorySettings
from turnwise.runs.store import StoredRow, read_rows, write_rows

_logger = logging.getLogger(__name__)

_NEWEST = 10
"""Steps that are never thinned: one looks at them while a run trains."""
_DOWN_TO = 0.9
"""The share of the limit down to which is thinned, so that it need not be done again after the next step."""
_WITHOUT_NUMBERS, _DROPPED = b"turnwise.without_numbers", b"turnwise.dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """What files lack, in episodes: `Thinned(without_numbers=480, dropped=64)`."""

    without_numbers: int = 0
    """Those whose numbers per token (advantages, the learner's logprobs, entropies) were dropped."""
    dropped: int = 0
    """Those that were dropped whole."""


class Retention:
    """`Retention(run.trajectories, settings).thin()` after a step was written, by the thread that writes."""

    def __init__(self, folder: Path, settings: TrajectorySettings) -> None:
        self._folder, self._settings = folder, settings
        self._warned = False
        self._done: set[tuple[str, object]] = set()
        """Files and what was done to them: one that holds nothing dull need not be read again."""

    def thin(self) -> None:
        """Thins the oldest steps while the folder is larger than it may be: first numbers per token, then episodes."""
        limit = self._settings.max_gigabytes
        if limit is None or (size := _size(self._folder)) <= limit * 1e9:
            return
        for change in (_without_numbers, _without_dull):
            for file in sorted(self._folder.glob("train-*.parquet"))[:-_NEWEST]:
                if size <= _DOWN_TO * limit * 1e9:
                    return
                size -= self._rewrite(file, change)
        if size > limit * 1e9 and not self._warned:
            self._warned = True
            words = "%s holds %.1f GB, more than trajectories.max_gigabytes: what is left is always kept"
            _logger.warning(words, self._folder, size / 1e9)

    def _rewrite(self, file: Path, change: Callable[[list[StoredRow], set[int]], list[StoredRow]]) -> int:
        """Changes a file, once, and returns how many bytes it has lost."""
        if (file.name, change) in self._done:
            return 0
        self._done.add((file.name, change))
        try:
            before, rows, size = read_thinned(file), read_rows(file), file.stat().st_size
        except RunError as error:
            _logger.warning("%s: it is left as it is", error)
            return 0
        dull = set(range(len(rows))) - self._interesting(rows)
        kept = change(rows, dull)
        lost = len(rows) - len(kept)
        found = Thinned(without_numbers=len(dull) - lost, dropped=before.dropped + lost)
        if found == before:
            return 0
        write_rows(file, kept, {_WITHOUT_NUMBERS: found.without_numbers, _DROPPED: found.dropped})
        return size - file.stat().st_size

    def _interesting(self, rows: Sequence[StoredRow]) -> set[int]:
        """Places of rows that stay whole."""
        scored = sorted((row["reward"], place) for place, row in enumerate(rows) if row["stop"] != "env_failed")
        worst = scored[: self._settings.keep_worst]
        best = scored[len(scored) - self._settings.keep_best :] if self._settings.keep_best else []
        failed = {place for place, row in enumerate(rows) if row["stop"] == "env_failed"}
        return failed | {place for _, place in (*worst, *best)}


def _without_numbers(rows: list[StoredRow], dull: set[int]) -> list[StoredRow]:
    for place in dull:
        for turn in rows[place]["turns"]:
            turn["advantages"] = turn["learner_logprobs"] = turn["entropies"] = None
    return rows


def _without_dull(rows: list[StoredRow], dull: set[int]) -> list[StoredRow]:
    return [row for place, row in enumerate(rows) if place not in dull]


def read_thinned(file: Path) -> Thinned:
    """What a file lacks."""
    try:
        metadata = pq.read_schema(file).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{file}: cannot be read: {error}") from None
    return Thinned(without_numbers=int(metadata.get(_WITHOUT_NUMBERS, 0)), dropped=int(metadata.get(_DROPPED, 0)))


def count_thinned(folder: Path) -> Thinned:
    """What all files of training lack; one that cannot be read is left out."""
    without_numbers = dropped = 0
    for file in folder.glob("train-*.parquet"):
        try:
            found = read_thinned(file)
        except RunError:
            continue
        without_numbers, dropped = without_numbers + found.without_numbers, dropped + found.dropped
    return Thinned(without_numbers=without_numbers, dropped=dropped)


def _size(folder: Path) -> int:
    """Of all files of trajectories; another process may tidy up meanwhile."""
    total = 0
    for file in folder.glob("*.parquet"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total
