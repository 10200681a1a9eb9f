"""The trajectories of one file as columns, a value per trajectory: what lists, filters and orders need, and no turns.

Invariant: every array has the same length and the order of the file. N = trajectories; a channel or metric that a
trajectory lacks is NaN.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int32]
Words: TypeAlias = npt.NDArray[np.object_]

_READ: Final = [
    *("step", "group", "member", "task_id", "task", "stop", "failure", "reward", "rewards", "metrics", "seconds"),
    *("turns.list.element.action_ids", "turns.list.element.context_ids"),
]
_FILE: Final = re.compile(r"([a-z_]+)-([0-9]+)\.parquet")
_QUESTION_CHARS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Some trajectories: `columns.reward[7]` is that of the eighth."""

    stage: Words
    step: Ints
    group: Ints
    member: Ints
    task: Words
    """The task's id."""
    environment: Words
    """Where the task's data names one (`env`, `environment` or `source`); else empty: the run's own."""
    question: Words
    stop: Words
    failure: Words
    reward: Floats
    spread: Floats
    """Standard deviation of the rewards in its group, failed members aside."""
    seconds: Floats
    turns: Ints
    sampled: Ints
    """Tokens that the agent sampled."""
    read: Ints
    rewards: Mapping[str, Floats]
    metrics: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.step)


def read_columns(path: Path) -> Columns:
    """The columns of one file; Arrow's own errors for a file that is damaged."""
    match = _FILE.fullmatch(path.name)
    assert match is not None, "`trajectory_files` found it"
    with pq.ParquetFile(path) as file:
        table = file.read(columns=_READ).combine_chunks()
    size = len(table)
    turns = _array(table, "turns")
    offsets = turns.offsets.to_numpy()
    group, reward = _integers(table, "group"), _floats(table, "reward")
    stop = _words(table["stop"].to_pylist())
    questions = _describe_tasks(table["task"].to_pylist())
    stage = np.full(size, match[1], dtype=object)
    return Columns(
        stage=stage,
        step=_integers(table, "step"),
        group=group,
        member=_integers(table, "member"),
        task=_words(table["task_id"].to_pylist()),
        environment=_words([environment for environment, _ in questions]),
        question=_words([question for _, question in questions]),
        stop=stop,
        failure=_words(table["failure"].to_pylist()),
        reward=reward,
        spread=spread_in_groups(group, reward, stop != "env_failed"),
        seconds=_floats(table, "seconds"),
        turns=np.diff(offsets).astype(np.int32),
        sampled=_count_tokens(turns.values, "action_ids", offsets),
        read=_count_tokens(turns.values, "context_ids", offsets),
        rewards=_by_name(_array(table, "rewards"), size),
        metrics=_by_name(_array(table, "metrics"), size),
    )


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Several files' columns end to end."""
    maps = ("rewards", "metrics")
    plain = [field.name for field in fields(Columns) if field.name not in maps]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in plain}
    by_name: dict[str, dict[str, Floats]] = {}
    for kind in maps:
        names = dict.fromkeys(name for part in parts for name in getattr(part, kind))
        by_name[kind] = {
            name: np.concatenate([getattr(part, kind).get(name, _unknown(len(part))) for part in parts])
            for name in names
        }
    return Columns(**joined, **by_name)  # type: ignore[arg-type]  # each is its field's kind


def spread_in_groups(group: Ints, reward: Floats, scored: npt.NDArray[np.bool_]) -> Floats:
    """By trajectory, the standard deviation of its group's rewards."""
    if not len(group):
        return np.zeros(0)
    size = int(group.max()) + 1
    count = np.maximum(np.bincount(group[scored], minlength=size), 1)
    mean = np.bincount(group[scored], reward[scored], size) / count
    square = np.bincount(group[scored], (reward[scored] - mean[group[scored]]) ** 2, size) / count
    spread: Floats = np.sqrt(square)[group]
    return spread


def _describe_tasks(tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Environment and question of each task; members of a group share the text, which is parsed once."""
    known = {text: _describe_task(text) for text in dict.fromkeys(tasks)}
    return [known[text] for text in tasks]


def _describe_task(text: str) -> tuple[str, str]:
    try:
        data = json.loads(text).get("data") or {}
    except (ValueError, AttributeError):
        return "", ""
    names = (data.get(key) for key in ("env", "environment", "source"))
    environment = next((name for name in names if isinstance(name, str)), "")
    asked = (data.get(key) for key in ("question", "instruction", "prompt", "problem"))
    question = next((line for line in asked if isinstance(line, str)), "")
    return environment, " ".join(question.split())[:_QUESTION_CHARS]


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _integers(table: pa.Table, name: str) -> Ints:
    integers: Ints = table[name].to_numpy().astype(np.int32)
    return integers


def _floats(table: pa.Table, name: str) -> Floats:
    floats: Floats = table[name].to_numpy().astype(np.float64)
    return floats


def _words(values: Sequence[str | None]) -> Words:
    words = np.empty(len(values), dtype=object)
    words[:] = [sys.intern(value or "") for value in values]
    return words


def _count_tokens(turns: pa.StructArray, name: str, offsets: npt.NDArray[np.int32]) -> Ints:
    lengths = pc.list_value_length(turns.field(name)).fill_null(0).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(lengths)])
    counts: Ints = (before[offsets[1:]] - before[offsets[:-1]]).astype(np.int32)
    return counts


def _by_name(maps: pa.MapArray, size: int) -> dict[str, Floats]:
    """A map per trajectory as a column per name."""
    owner = np.repeat(np.arange(size), np.diff(maps.offsets.to_numpy()))
    encoded = maps.keys.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    values = maps.items.to_numpy(zero_copy_only=False)
    columns = {}
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        column = _unknown(size)
        column[owner[codes == code]] = values[codes == code]
        columns[name] = column
    return columns


def _unknown(size: int) -> Floats:
    return np.full(size, np.nan)
