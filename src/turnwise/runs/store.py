"""Trajectories on disk: one Parquet file per training step or evaluation, one row per trajectory.

Invariant: what is read back equals what was written, and any Parquet reader can show it, text included. A turn is one
struct, so its tokens, logprobs and text cannot come apart; a trajectory without tokens has its messages instead.
Logprobs are kept as float32, as engines compute them and the learner reads them (`Row.logprobs`): other values
are rounded to float32.
"""

import functools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.errors import RunError
from turnwise.runs.files import replaced
from turnwise.types import Finish, Group, Message, StopReason, Task, ToolCall, Trajectory, Turn

Decode: TypeAlias = Callable[[Sequence[int]], str]
DecodeMany: TypeAlias = Callable[[Sequence[Sequence[int]]], Sequence[str]]
Floats: TypeAlias = npt.NDArray[np.floating] | Sequence[float]
Known: TypeAlias = Sequence[float | None]
PerToken: TypeAlias = Mapping[str, Mapping[tuple[int, int], Floats]]
"""By column of `PER_TOKEN`, then by group and member: a number per action token."""
Ids: TypeAlias = tuple[int, ...]

_LAYOUT = "6"
_OLD_LAYOUTS = {"1": ("tail_ids", "messages"), "2": ("messages",), "3": (), "4": (), "5": ()}
"""Columns that older layouts lack: no trajectory of theirs has any. Before 4, turns lack what the learner scored, and
before 5 their times; before 6, one version of the weights sampled each turn."""
PER_TOKEN = ("advantages", "learner_logprobs", "entropies")
"""Columns of a turn with one number per action token where it was trained on, and null where it was not. The learner's
logprobs and entropies are those before its first step; in a mini-batch after that, each is null."""
_NUMBERS = pa.map_(pa.string(), pa.float64())
_TURN = pa.struct(
    [
        ("context_text", pa.string()),
        ("action_text", pa.string()),
        ("context_ids", pa.list_(pa.int32())),
        ("action_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        *((name, pa.list_(pa.float32())) for name in PER_TOKEN),
        ("rewards", _NUMBERS),
        ("version", pa.int32()),
        ("versions", pa.list_(pa.list_(pa.int32()))),
        ("opens_row", pa.bool_()),
        ("finish", pa.string()),
        ("state_key", pa.string()),
        ("seconds", pa.float32()),
        ("env_seconds", pa.float32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),
        ("member", pa.int32()),
        ("task_id", pa.string()),
        ("task", pa.string()),
        ("episode_seed", pa.int64()),
        ("stop", pa.string()),
        ("failure", pa.string()),
        ("reward", pa.float64()),
        ("rewards", _NUMBERS),
        ("metrics", _NUMBERS),
        ("seconds", pa.float64()),
        ("turns", pa.list_(_TURN)),
        ("tail_text", pa.string()),
        ("tail_ids", pa.list_(pa.int32())),
        ("messages", pa.list_(pa.string())),
    ],
    metadata={"turnwise.layout": _LAYOUT},
)


class StoredTurn(TypedDict):
    """A turn as Parquet gives it back; older layouts lack times and the columns of `PER_TOKEN` but the first."""

    context_text: str
    action_text: str
    context_ids: Sequence[int]
    action_ids: Sequence[int]
    logprobs: Sequence[float]
    advantages: Known | None
    learner_logprobs: Known | None
    entropies: Known | None
    rewards: Sequence[tuple[str, float]]
    version: int
    versions: Sequence[Sequence[int]]
    """(first token, version) of each span that one version of the weights sampled."""
    opens_row: bool
    finish: str
    state_key: str | None
    seconds: float
    env_seconds: float


class StoredRow(TypedDict):
    """A trajectory as Parquet gives it back."""

    step: int
    group: int
    member: int
    task_id: str
    task: str
    episode_seed: int
    stop: str
    failure: str
    reward: float
    rewards: Sequence[tuple[str, float]]
    metrics: Sequence[tuple[str, float]]
    seconds: float
    turns: Sequence[StoredTurn]
    tail_text: str
    tail_ids: Sequence[int]
    messages: Sequence[str]


# Token ids repeat, so a dictionary shrinks them; floats do not, and split into bytes at least their exponents do.
_IDS = [f"turns.list.element.{name}.list.element" for name in ("context_ids", "action_ids")] + ["tail_ids.list.element"]
_FLOATS = [f"turns.list.element.{name}.list.element" for name in ("logprobs", *PER_TOKEN)]


def write_trajectories(
    path: Path,
    step: int,
    groups: Sequence[Group],
    per_token: PerToken | None,
    decode: Decode | None,
) -> None:
    """Writes the trajectories of one step, atomically.

    `per_token["advantages"][group, member]` has one number per action token of that trajectory, in order, and so have
    the other columns of `PER_TOKEN`; for a trajectory that was not trained on there is none, and null is written.
    Without `decode`, tokens are stored without their text.
    """
    one_by_one = None if decode is None else lambda batch: [decode(ids) for ids in batch]
    prepare_trajectories(path, step, groups, per_token, one_by_one)()


def prepare_trajectories(
    path: Path, step: int, groups: Sequence[Group], per_token: PerToken | None, decode_many: DecodeMany | None
) -> Callable[[], None]:
    """Decodes what `write_trajectories` would write, and returns the rest of it, which may run in another thread.

    A renderer of one's own need not be safe to call from there.
    """
    given = per_token or {}
    assert set(given) <= set(PER_TOKEN), "a column that there is"
    everyone = [trajectory for group in groups for trajectory in _members(group)]
    # Each text once: a group's members read one prompt, and often the same observations.
    seen = {ids: None for one in everyone for turn in one.turns for ids in (turn.context_ids, turn.action_ids)}
    seen |= dict.fromkeys(one.tail_ids for one in everyone)
    found = decode_many([*seen]) if decode_many else [""] * len(seen)
    texts = {ids: _storable(text) for ids, text in zip(seen, found, strict=True)}
    return functools.partial(_write, path, step, groups, given, texts)


def _write(path: Path, step: int, groups: Sequence[Group], per_token: PerToken, texts: Mapping[Ids, str]) -> None:
    _write_table(path, _tabulate(step, groups, per_token, texts))


def write_rows(path: Path, rows: Sequence[StoredRow], counts: Mapping[bytes, int] | None = None) -> None:
    """Writes rows as they are stored, atomically; `counts` of what they lack go into the file's metadata."""
    metadata = {**(SCHEMA.metadata or {}), **{name: str(count) for name, count in (counts or {}).items()}}
    _write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(metadata)))


def _write_table(path: Path, table: pa.Table) -> None:
    with replaced(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", use_dictionary=_IDS, use_byte_stream_split=_FLOATS)


def read_trajectories(path: str | Path) -> list[Group]:
    """The groups of one file, equal to those that were written."""
    members: dict[int, list[Trajectory]] = {}
    for row in read_rows(path):
        members.setdefault(row["group"], []).append(trajectory_of(row))
    return [Group(task=found[0].task, trajectories=tuple(found)) for found in members.values()]


def read_rows(path: str | Path, chosen: Collection[tuple[int, int]] | None = None) -> list[StoredRow]:
    """The rows of one file as they were stored, in order; of all trajectories, or of these groups' members."""
    table = _read_table(Path(path))
    try:
        return _chosen_rows(table, chosen)
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path}: damaged: {' '.join(str(error).split())[:200]}") from None


def _chosen_rows(table: pa.Table, chosen: Collection[tuple[int, int]] | None) -> list[StoredRow]:
    if chosen is not None:
        places = zip(table["group"].to_pylist(), table["member"].to_pylist(), strict=True)
        table = table.filter(pa.array([place in chosen for place in places], pa.bool_()))
    rows: list[StoredRow] = table.sort_by([("group", "ascending"), ("member", "ascending")]).to_pylist()
    return rows


def _read_table(path: Path) -> pa.Table:
    try:
        # Not `read_table`, which would read a folder such as runs/lr=1e-4 as a partition column.
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except FileNotFoundError:
        raise RunError(f"{path}: no such file; a run keeps its trajectories in trajectories/*.parquet") from None
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        what = "not a Parquet file" if "magic bytes" in reason else f"not a whole Parquet file: {reason}"
        raise RunError(f"{path}: {what}") from None
    layout = (table.schema.metadata or {}).get(b"turnwise.layout", b"none").decode("utf-8", "replace")
    if layout not in (_LAYOUT, *_OLD_LAYOUTS):
        raise RunError(f"{path}: trajectories of layout {layout}, but this version of turnwise reads layout {_LAYOUT}")
    for name in _OLD_LAYOUTS.get(layout, ()):
        table = table.append_column(SCHEMA.field(name), pa.array([[]] * len(table), SCHEMA.field(name).type))
    expected = SCHEMA.names if layout == _LAYOUT else ("step", "group", "member")
    if missing := [name for name in expected if table.schema.names.count(name) != 1]:
        raise RunError(f"{path}: damaged: the column {missing[0]!r} is missing or there twice")
    return table


def _members(group: Group) -> Iterable[Trajectory]:
    assert group.trajectories, "a group has at least one trajectory"
    assert all(member.task == group.task for member in group.trajectories), "a group is of one task"
    return group.trajectories


def _tabulate(step: int, groups: Sequence[Group], per_token: PerToken, texts: Mapping[Ids, str]) -> pa.Table:
    """By whole columns, token ids once for each text: this runs beside the next step, which needs Python's lock."""
    places = [(index, member) for index, group in enumerate(groups) for member in range(len(group.trajectories))]
    everyone = [trajectory for group in groups for trajectory in _members(group)]
    tasks = {id(group): _storable(_to_json(group.task)) for group in groups}
    arrays = {ids: np.asarray(ids, np.int32) for ids in texts}
    columns = {
        "step": [step] * len(places),
        "group": [index for index, _ in places],
        "member": [member for _, member in places],
        "task_id": [one.task.id for one in everyone],
        "task": [tasks[id(group)] for group in groups for _ in group.trajectories],
        "episode_seed": [one.episode_seed for one in everyone],
        "stop": [one.stop.value for one in everyone],
        "failure": [_storable(one.failure) for one in everyone],
        "reward": [one.reward for one in everyone],
        "rewards": _maps([one.rewards for one in everyone]),
        "metrics": _maps([one.metrics for one in everyone]),
        "seconds": [one.seconds for one in everyone],
        "turns": _turns(places, everyone, per_token, texts, arrays),
        "tail_text": [texts[one.tail_ids] for one in everyone],
        "tail_ids": _lists([arrays[one.tail_ids] for one in everyone]),
        "messages": [
            [_storable(json.dumps(asdict(message), ensure_ascii=False)) for message in one.messages] for one in everyone
        ],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def _turns(
    places: Sequence[tuple[int, int]],
    everyone: Sequence[Trajectory],
    per_token: PerToken,
    texts: Mapping[Ids, str],
    arrays: Mapping[Ids, npt.NDArray[np.int32]],
) -> pa.ListArray:
    turns = [turn for one in everyone for turn in one.turns]
    columns = {
        "context_text": [texts[turn.context_ids] for turn in turns],
        "action_text": [texts[turn.action_ids] for turn in turns],
        "context_ids": _lists([arrays[turn.context_ids] for turn in turns]),
        "action_ids": _lists([arrays[turn.action_ids] for turn in turns]),
        "logprobs": _lists([np.asarray(turn.logprobs, np.float32) for turn in turns]),
        **{name: _numbers(places, everyone, per_token.get(name, {})) for name in PER_TOKEN},
        "rewards": _maps([turn.rewards for turn in turns]),
        "version": [turn.version for turn in turns],
        "versions": [turn.versions for turn in turns],
        "opens_row": [turn.opens_row for turn in turns],
        "finish": [turn.finish.value for turn in turns],
        "state_key": [turn.state_key for turn in turns],
        "seconds": [turn.seconds for turn in turns],
        "env_seconds": [turn.env_seconds for turn in turns],
    }
    structs = pa.StructArray.from_arrays(
        [pa.array(columns[field.name], field.type) for field in _TURN], fields=[*_TURN]
    )
    return pa.ListArray.from_arrays(_offsets([one.turns for one in everyone]), structs)


def _numbers(
    places: Sequence[tuple[int, int]], everyone: Sequence[Trajectory], found: Mapping[tuple[int, int], Floats]
) -> pa.ListArray:
    """A number for each action token of every turn; no list for the turns of a trajectory that has none."""
    numbers = [found.get(place) for place in places]
    for one, own in zip(everyone, numbers, strict=True):
        assert own is None or len(own) == one.action_tokens, "one number per action token"
    values = np.concatenate([np.empty(0), *(np.asarray(own, np.float64) for own in numbers if own is not None)])
    unknown = [own is None for one, own in zip(everyone, numbers, strict=True) for _ in one.turns]
    turns = [turn.action_ids for one in everyone for turn in one.turns]
    known = [() if missing else ids for ids, missing in zip(turns, unknown, strict=True)]
    # NaN is unknown, too.
    return pa.ListArray.from_arrays(
        _offsets(known), pa.array(values, pa.float32(), from_pandas=True), mask=pa.array(unknown, pa.bool_())
    )


def _lists(parts: Sequence[npt.NDArray[np.generic]]) -> pa.ListArray:
    return pa.ListArray.from_arrays(_offsets(parts), np.concatenate(parts) if parts else np.empty(0))


def _maps(parts: Sequence[Mapping[str, float]]) -> pa.MapArray:
    keys, values = ([x for part in parts for x in part], [x for part in parts for x in part.values()])
    return pa.MapArray.from_arrays(_offsets(parts), pa.array(keys, pa.string()), pa.array(values, pa.float64()))


def _offsets(parts: Sequence[Sized]) -> npt.NDArray[np.int32]:
    """Where each part begins when all lie end to end, and where the last one ends."""
    return np.cumsum([0, *map(len, parts)], dtype=np.int32)


def _to_json(task: Task) -> str:
    told = {"id": task.id, "seed": task.seed, "data": task.data, **({"env": task.env} if task.env else {})}
    return json.dumps(told, ensure_ascii=False, default=dict)


def _storable(text: str) -> str:
    """Replaces half of a surrogate pair, which a token can end in and UTF-8 cannot encode; the ids are exact."""
    return text.encode("utf-8", "replace").decode("utf-8")


def trajectory_of(row: StoredRow) -> Trajectory:
    """The trajectory that was stored as this row; RunError if it is damaged."""
    try:
        return _from_row(row)
    except RunError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError) as error:
        where = f"group {row['group']}, member {row['member']} of step {row['step']}"
        raise RunError(f"the trajectory of {where} is damaged: {' '.join(str(error).split())[:200]}") from None


def _from_row(row: StoredRow) -> Trajectory:
    task = json.loads(row["task"])
    return Trajectory(
        task=Task(id=task["id"], seed=task["seed"], data=task["data"], env=task.get("env", "")),
        turns=tuple(_from_struct(turn) for turn in row["turns"]),
        stop=StopReason(row["stop"]),
        episode_seed=row["episode_seed"],
        metrics=dict(row["metrics"]),
        seconds=row["seconds"],
        failure=row["failure"],
        tail_ids=tuple(row["tail_ids"]),
        messages=tuple(_read_message(text) for text in row["messages"]),
    )


def _read_message(text: str) -> Message:
    data = json.loads(text)
    return Message(**{**data, "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"])})


def _from_struct(turn: StoredTurn) -> Turn:
    return Turn(
        context_ids=tuple(turn["context_ids"]),
        action_ids=tuple(turn["action_ids"]),
        logprobs=tuple(turn["logprobs"]),
        rewards=dict(turn["rewards"]),
        version=turn["version"],
        versions=tuple((first, version) for first, version in turn.get("versions") or ()),
        opens_row=turn["opens_row"],
        finish=Finish(turn["finish"]),
        state_key=turn["state_key"],
        seconds=turn.get("seconds") or 0.0,
        env_seconds=turn.get("env_seconds") or 0.0,
    )
