"""Tasks from data: a JSONL, JSON, CSV, TSV or Parquet file, or a Hugging Face dataset, a task for each row.

Invariant: a task's id and seed follow from its row alone (its `id` column, else its content), so neither the order nor
the number of rows changes them; rows of equal content are never divided between splits; what cannot be read is one
line that names the file and the row. A large file is indexed, and its rows are read when they are asked for.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeAlias, overload

from pydantic import AfterValidator, Field

from turnwise.envs.lazy_tasks import LazyTasks
from turnwise.envs.rows import Rows, open_rows
from turnwise.errors import EnvError
from turnwise.seeds import derive_seed, seed_of_id
from turnwise.settings import Settings
from turnwise.spelling import suggest
from turnwise.types import Json, Task

Share: TypeAlias = Annotated[float, Field(gt=0, lt=1)]
Splits: TypeAlias = Mapping[str, str | Path | float]
"""By split a file or dataset, or the share of `train` that is held out for it: `{"train": "a.jsonl", "test": 0.1}`."""
_CHECKED_AT_ONCE = 20_000
"""Rows up to which every task is made, and so every mistake found, before the first episode."""
_SPLITS = ("train", "test", "validation")


def _find_place(place: str) -> str:
    """A file that is there by its whole path, so that a run that records it is evaluated from any folder."""
    return str(Path(place).resolve()) if Path(place).exists() else place


Place: TypeAlias = Annotated[str, AfterValidator(_find_place)]


class TaskSettings(Settings):
    """Tasks from data of your own, in place of the environment's."""

    short_form = "train"

    train: Place
    """A .jsonl, .json, .csv, .tsv or .parquet file (also .gz), a folder that `datasets` saved, or a dataset on the hub:
    `owner/name`, `owner/name/config`, with `:split` for another split than `train`."""
    test: Place | Share | None = None
    """The same for the tasks to evaluate on; or the share of `train` to hold out for them, such as 0.1."""
    validation: Place | Share | None = None
    """A further split, for `evaluate.split` or `sft.split`."""
    columns: dict[str, str] = Field(default_factory=dict)
    """What the environment calls a column: `{question: prompt, answers: reward_model.ground_truth}`; dots lead into
    nested values. `id` and `seed` are the task's own. Columns that are not named keep their names."""
    seed: int = Field(default=0, ge=0)
    """Draws the tasks that are held out."""


@overload
def read_tasks(
    source: str | Path, *, columns: Mapping[str, str] | None = None, split: str = "train"
) -> Sequence[Task]: ...
@overload
def read_tasks(
    source: Splits, *, columns: Mapping[str, str] | None = None, seed: int = 0
) -> dict[str, Sequence[Task]]: ...
def read_tasks(
    source: str | Path | Splits, *, columns: Mapping[str, str] | None = None, split: str = "train", seed: int = 0
) -> Sequence[Task] | dict[str, Sequence[Task]]:
    """Tasks from a file or dataset: `read_tasks("data.jsonl", columns={"question": "prompt", "answers": "gold"})`.

    A mapping gives the tasks by split: `read_tasks({"train": "data.jsonl", "test": 0.1})` holds a tenth out.

    Args:
        source: A .jsonl, .json, .csv, .tsv or .parquet file (also .gz), a folder that `datasets` saved, or the id of a
            dataset on the hub; or one for each split, where a number is the share of `train` to hold out.
        columns: What the environment calls a column, by the column's own name; dots lead into nested values.
        split: Of a dataset, which of its splits.
        seed: Draws the tasks that are held out.
    """
    if isinstance(source, Mapping):
        return _read_splits(source, columns or {}, seed)
    return _make_tasks(open_rows(str(source), split), columns or {})


def tasks_of(settings: TaskSettings) -> Callable[[str], Sequence[Task]]:
    """What an environment's `tasks(split)` answers under these settings."""
    given = {split: getattr(settings, split) for split in _SPLITS if getattr(settings, split) is not None}
    splits = _read_splits(given, settings.columns, settings.seed)

    def tasks(split: str) -> Sequence[Task]:
        if split not in splits:
            raise EnvError(
                f"env.tasks has no split '{split}'{suggest(split, splits)}: add env.tasks.{split}, a file or the share "
                "of train to hold out, such as 0.1"
            )
        return splits[split]

    return tasks


def _read_splits(given: Splits, columns: Mapping[str, str], seed: int) -> dict[str, Sequence[Task]]:
    files = {split: source for split, source in given.items() if not isinstance(source, float)}
    shares = {split: source for split, source in given.items() if isinstance(source, float)}
    splits = {split: _make_tasks(open_rows(str(source), split), columns) for split, source in files.items()}
    if not shares:
        return splits
    if "train" not in splits:
        raise EnvError("tasks: a share is held out of 'train', for which there is no file: name one")
    left: Sequence[Task] = splits["train"]
    for split, share in shares.items():
        left, splits[split] = _hold_out(left, share, seed, split)
    splits["train"] = left
    return splits


def _hold_out(tasks: Sequence[Task], share: float, seed: int, split: str) -> tuple[list[Task], list[Task]]:
    """The tasks but for a share, and that share; which ones follows from their content, and so alike for equal ones."""
    listed = list(tasks)
    draw = [derive_seed(seed, split, _hash(task.data)) for task in listed]
    wanted = round(share * len(listed))
    if not 0 < wanted < len(listed):
        raise EnvError(f"tasks.{split}: a share of {share:g} of {len(listed)} tasks leaves one side empty: change it")
    last = sorted(draw)[wanted - 1]
    held = [one <= last for one in draw]
    if all(held):
        raise EnvError(f"tasks.{split}: all rows are equal, so none can be held out: give a file of its own")
    return (
        [task for task, out in zip(listed, held, strict=True) if not out],
        [task for task, out in zip(listed, held, strict=True) if out],
    )


def _make_tasks(rows: Rows, columns: Mapping[str, str]) -> Sequence[Task]:
    if not len(rows):
        raise EnvError(f"{rows.name}: there are no rows in it")
    tasks = LazyTasks(lambda place: _make_task(rows, place, columns), range(len(rows)))
    if len(rows) > _CHECKED_AT_ONCE:
        _ = tasks[0]
        return tasks
    return _distinct(rows, list(tasks), named="id" in columns or "id" in rows[0])


def _distinct(rows: Rows, tasks: list[Task], *, named: bool) -> list[Task]:
    """Ids are a name for one task each: a column that repeats one is a mistake, equal content is numbered."""
    first: dict[str, int] = {}
    times: dict[str, int] = {}
    for place, task in enumerate(tasks):
        if named and task.id in first:
            raise EnvError(f"{rows.where(place)}: the id '{task.id}' is that of {rows.where(first[task.id])}, too")
        first.setdefault(task.id, place)
        times[task.id] = times.get(task.id, 0) + 1
        if times[task.id] > 1:
            tasks[place] = replace(task, id=f"{task.id}-{times[task.id]}")
    return tasks


def _make_task(rows: Rows, place: int, columns: Mapping[str, str]) -> Task:
    row = rows[place]
    where = rows.where(place)
    used = {source.partition(".")[0] for source in columns.values()} | set(columns.values())
    data: dict[str, Json] = {name: value for name, value in row.items() if name not in used and value is not None}
    for name, column in columns.items():
        data[name] = _find(row, column, where, name)
    own, seed = data.pop("id", None), data.pop("seed", None)
    if own is not None and not isinstance(own, str | int):
        raise EnvError(f"{where}: the id is {own!r}: expected text or an integer")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise EnvError(f"{where}: the seed is {seed!r}: expected an integer")
    task_id = _hash(data) if own is None else str(own)
    return Task(id=task_id, seed=seed_of_id(task_id) if seed is None else seed, data=data, origin=where)


def _find(row: Mapping[str, Json], column: str, where: str, name: str) -> Json:
    """A column by its name, or what dots lead to inside one: `reward_model.ground_truth`, `prompt.0.content`."""
    if column in row:
        return row[column]
    value: Json = dict(row)
    for part in column.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise EnvError(
                f"{where}: there is no column '{column}' for '{name}'{suggest(column, row)}; its columns are: "
                f"{', '.join(row)}"
            )
    return value


def _hash(data: Mapping[str, Json]) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
