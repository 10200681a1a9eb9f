"""A run's trajectories to browse: filtered, ordered, and a page of them at a time.

Invariant: files are read once, newest first, for as long as a request may take; what is still to be read is counted in
`pending`, and a file that cannot be read is named. Answers depend on the files alone.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from turnwise.errors import RunError
from turnwise.spelling import suggest
from turnwise.studio.columns import Columns, join_columns, read_columns
from turnwise.studio.library import Run
from turnwise.types import Json

Mask: TypeAlias = npt.NDArray[np.bool_]
Stamp: TypeAlias = tuple[int, int]

_SECONDS: Final = 0.6
"""That a request reads new files; the page asks again while some are pending."""
_ORDERS: Final = ("order", "reward", "spread", "turns", "tokens", "seconds", "tool_errors")
_MOST_FACETS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to list: `Query(stage="train", stop="max_turns", sort="spread")`; empty or None takes all."""

    stage: str = ""
    step: int | None = None
    task: str = ""
    environment: str = ""
    stop: str = ""
    success: str = ""
    """`yes`, `no`, or `failed`: those that infrastructure ended."""
    channel: str = ""
    """The reward that `least` and `most` bound; the sum of all by default."""
    least: float | None = None
    most: float | None = None
    errors: bool = False
    """Those with a tool error."""
    shortest: int | None = None
    """Fewest sampled tokens."""
    longest: int | None = None
    text: str = ""
    sort: str = "order"
    descending: bool = False
    offset: int = 0
    limit: int = 100


class Index:
    """The trajectories of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.lock = threading.Lock()
        self._parts: dict[Path, tuple[Stamp, Columns | None]] = {}
        self._broken: dict[Path, str] = {}
        self._joined: Columns | None = None
        self.files: list[Path] = []
        """Those in `columns`, in the order in which the run wrote them."""

    def update(self, seconds: float = _SECONDS, *, first: Path | None = None) -> tuple[int, list[str]]:
        """Reads new and changed files for some seconds; how many are left, and what could not be read.

        `first` is read before all others: the one that is asked for.
        """
        problems: list[str] = []
        files = self._run.trajectory_files(problems)
        stamps = {path: stamp for path in files if (stamp := _stamp(path)) is not None}
        stale = [path for path in files if path in stamps and self._parts.get(path, (None,))[0] != stamps[path]]
        gone = self._parts.keys() - stamps.keys()
        until = time.monotonic() + seconds
        done = 0
        for path in sorted(stale, key=lambda one: (one != first, -stamps[one][0])):
            if done and time.monotonic() > until:
                break
            self._read(path, stamps[path])
            done += 1
        for path in gone:
            del self._parts[path]
            self._broken.pop(path, None)
        if done or gone:
            self.files = [path for path in files if self._parts.get(path, (None, None))[1] is not None]
            self._joined = None
        return len(stale) - done, [*problems, *self._broken.values()]

    @property
    def columns(self) -> Columns | None:
        """All that was read; None where there is nothing."""
        if self._joined is None and self.files:
            self._joined = join_columns([part for path in self.files if (part := self._parts[path][1]) is not None])
        return self._joined

    def sizes(self) -> list[int]:
        """How many trajectories each of `files` has."""
        return [len(part) for path in self.files if (part := self._parts[path][1]) is not None]

    def _read(self, path: Path, stamp: Stamp) -> None:
        self._broken.pop(path, None)
        try:
            self._parts[path] = (stamp, read_columns(path))
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, IndexError) as error:
            self._parts[path] = (stamp, None)
            self._broken[path] = f"{path.name} cannot be read: {' '.join(str(error).split())[:200]}"


def match_rows(
    columns: Columns, query: Query, own_environment: str = "", found: Collection[int] | None = None
) -> npt.NDArray[np.int64]:
    """The places of the trajectories that a query asks for, in its order; `found` are those with its text."""
    keep: Mask = np.ones(len(columns), dtype=bool)
    for name, value in (("stage", query.stage), ("task", query.task), ("stop", query.stop)):
        if value:
            keep &= getattr(columns, name) == value
    if query.environment:
        unnamed = "" if query.environment == own_environment else query.environment
        keep &= (columns.environment == query.environment) | (columns.environment == unnamed)
    if query.step is not None:
        keep &= columns.step == query.step
    keep &= _by_success(columns, query.success)
    amount = columns.rewards.get(query.channel, np.full(len(columns), np.nan)) if query.channel else columns.reward
    if query.channel and query.least is None and query.most is None:
        keep &= np.isfinite(amount) & (amount != 0)
    bounds = ((amount, query.least, query.most), (columns.sampled, query.shortest, query.longest))
    for values, least, most in bounds:
        if least is not None:
            keep &= values >= least
        if most is not None:
            keep &= values <= most
    if query.errors:
        keep &= columns.metrics.get("tool_errors", np.zeros(len(columns))) > 0
    if found is not None:
        inside = np.zeros(len(columns), dtype=bool)
        inside[list(found)] = True
        keep &= inside
    return _in_order(columns, np.flatnonzero(keep), query)


def _by_success(columns: Columns, wanted: str) -> Mask:
    failed: Mask = columns.stop == "env_failed"
    if wanted == "failed":
        return failed
    success = columns.metrics.get("success", np.full(len(columns), np.nan))
    if wanted == "yes":
        won: Mask = (success > 0) & ~failed
        return won
    if wanted == "no":
        lost: Mask = ~(success > 0) & ~failed
        return lost
    return np.ones(len(columns), dtype=bool)


def _in_order(columns: Columns, places: npt.NDArray[np.int64], query: Query) -> npt.NDArray[np.int64]:
    if query.sort not in _ORDERS:
        raise RunError(f"sort: no '{query.sort[:40]}'{suggest(query.sort[:40], _ORDERS)}")
    if query.sort == "order":
        return places[::-1] if query.descending else places
    keys: Mapping[str, Callable[[], npt.NDArray[np.generic]]] = {
        "reward": lambda: columns.rewards.get(query.channel, columns.reward),
        "spread": lambda: columns.spread,
        "turns": lambda: columns.turns,
        "tokens": lambda: columns.sampled,
        "seconds": lambda: columns.seconds,
        "tool_errors": lambda: columns.metrics.get("tool_errors", np.zeros(len(columns))),
    }
    values = np.nan_to_num(keys[query.sort]()[places].astype(np.float64), nan=-np.inf)
    # Stable, so that a group's members stay together.
    return places[np.argsort(-values if query.descending else values, kind="stable")]


def show_rows(columns: Columns, places: Sequence[int], own_environment: str) -> list[Json]:
    """These trajectories as the list shows them."""
    return [_row(columns, place, own_environment) for place in places]


def _row(columns: Columns, place: int, own_environment: str) -> Json:
    stage, step = columns.stage[place], int(columns.step[place])
    group, member = int(columns.group[place]), int(columns.member[place])
    failed = columns.stop[place] == "env_failed"
    return {
        "name": f"{stage}-{step}/{group}/{member}",
        "stage": stage,
        "step": step,
        "group": group,
        "member": member,
        "task": columns.task[place],
        "environment": columns.environment[place] or own_environment,
        "question": columns.question[place],
        "reward": None if failed else float(columns.reward[place]),
        "rewards": _known(columns.rewards, place),
        "success": _known(columns.metrics, place).get("success"),
        "spread": float(columns.spread[place]),
        "stop": columns.stop[place],
        "failure": columns.failure[place],
        "turns": int(columns.turns[place]),
        "tokens": int(columns.sampled[place]),
        "read": int(columns.read[place]),
        "tool_errors": _known(columns.metrics, place).get("tool_errors"),
        "seconds": float(columns.seconds[place]),
    }


def list_facets(columns: Columns, own_environment: str) -> dict[str, Json]:
    """What filters can choose from, each with its number of trajectories."""
    return {
        "stages": _count(columns.stage),
        "steps": sorted({int(step) for step in np.unique(columns.step)}),
        "environments": [
            [name or own_environment, count] for name, count in Counter(columns.environment).most_common()
        ],
        "stops": _count(columns.stop),
        "channels": sorted(columns.rewards),
        "tasks": len(set(columns.task)),
    }


def list_failures(columns: Columns) -> list[Json]:
    """Failures by kind, the commonest first, with one of each to look at."""
    kinds: dict[str, list[int]] = {}
    for place in np.flatnonzero(columns.failure != ""):
        words = str(columns.failure[place]).removeprefix(f"task '{columns.task[place]}': ")
        kinds.setdefault(":".join(words.split(":")[:2])[:120], []).append(int(place))
    ranked = sorted(kinds.items(), key=lambda one: -len(one[1]))[:20]
    return [
        {"kind": kind, "count": len(places), "example": show_rows(columns, places[-1:], "")[0]}
        for kind, places in ranked
    ]


def parse_query(given: Mapping[str, str]) -> Query:
    """A query from an address; what cannot be read is an error that names it."""
    known = {field.name: field.type for field in fields(Query)}
    values: dict[str, object] = {}
    for name, text in given.items():
        if name not in known:
            raise RunError(f"no filter '{name[:40]}'{suggest(name[:40], known)}")
        if text:
            values[name] = _parse(name, text, str(known[name]))
    return Query(**values)  # type: ignore[arg-type]  # parsed by its field's type


def _parse(name: str, text: str, kind: str) -> object:
    try:
        if "bool" in kind:
            return text in ("1", "true", "yes")
        if "int" in kind:
            return max(0, min(int(text), 10**9))
        return float(text) if "float" in kind else text
    except ValueError:
        raise RunError(f"{name}: '{text[:40]}' is not a number") from None


def _known(columns: Mapping[str, npt.NDArray[np.float64]], place: int) -> dict[str, Json]:
    return {name: float(column[place]) for name, column in columns.items() if np.isfinite(column[place])}


def _count(words: npt.NDArray[np.object_]) -> list[Json]:
    return [[word, count] for word, count in Counter(words).most_common(_MOST_FACETS)]


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size
