"""Text inside trajectories, found in their files as they are, without an index that could be out of date.

Invariant: a trajectory is found exactly when the text, in any case, is in something that its agent read or wrote, in
its task or in its failure.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_TEXTS: Final = ["turns.list.element.context_text", "turns.list.element.action_text"]
_COLUMNS: Final = ["task", "failure", "tail_text", "messages", *_TEXTS]
_THREADS: Final = 2
_MOST_REMEMBERED: Final = 4096
_remembered: dict[tuple[str, int, int, str], npt.NDArray[np.int64]] = {}
"""Places by file, its time and size, and the text: the next page of a search reads nothing again."""
_lock = threading.Lock()


def search_files(files: Sequence[Path], text: str) -> list[npt.NDArray[np.int64]]:
    """By file, the places of the trajectories with this text in them."""
    if len(files) < 2:
        return [_search(path, text) for path in files]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda path: _search(path, text), files))


def _search(path: Path, text: str) -> npt.NDArray[np.int64]:
    try:
        stat = path.stat()
        key = (str(path), stat.st_mtime_ns, stat.st_size, text)
        if (known := _remembered.get(key)) is not None:
            return known
        with pq.ParquetFile(path) as file:
            table = file.read(columns=_COLUMNS).combine_chunks()
    except (pa.ArrowException, OSError):
        return np.zeros(0, dtype=np.int64)  # the index names it among its problems
    found = np.zeros(len(table), dtype=bool)
    for name in ("task", "failure", "tail_text"):
        if name in table.column_names:
            found |= _contains(table[name], text)
    for name in ("turns", "messages"):
        if name in table.column_names and table[name].num_chunks:
            lists, values = table[name].chunk(0), table[name].chunk(0).values
            texts = [values.field("context_text"), values.field("action_text")] if name == "turns" else [values]
            found |= _any_in_lists(lists, texts, text)
    places = np.flatnonzero(found)
    with _lock:
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[key] = places
    return places


def _any_in_lists(lists: pa.ListArray, inner: Sequence[pa.Array], text: str) -> npt.NDArray[np.bool_]:
    hit = np.zeros(len(lists.values), dtype=np.int64)
    for values in inner:
        hit |= _contains(values, text)
    offsets = lists.offsets.to_numpy()
    before = np.concatenate([[0], np.cumsum(hit)])
    within: npt.NDArray[np.bool_] = before[offsets[1:]] > before[offsets[:-1]]
    return within


def _contains(values: pa.Array | pa.ChunkedArray, text: str) -> npt.NDArray[np.bool_]:
    hit = pc.match_substring(values, text, ignore_case=True).fill_null(False)
    contains: npt.NDArray[np.bool_] = np.asarray(hit, dtype=bool)
    return contains
