"""Trajectories in Parquet: what is read equals what was written, and any reader can read it."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnwise.errors import RunError
from turnwise.runs import read_trajectories, write_trajectories
from turnwise.runs.store import PER_TOKEN, SCHEMA
from turnwise.types import Finish, Group, Message, StopReason, Task, ToolCall, Trajectory, Turn

WORDS = ["<s>", "Who", "?", "search", "Oslo", "</s>"]
TASK = Task(id="train-7", seed=2**62, data={"question": "Wer gründete Ørsted?", "answers": ["a", None], "hops": 2})
OTHER = Task(id="train-8")


def decode(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def f32(*values: float) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


FULL = Trajectory(
    task=TASK,
    turns=(
        Turn(
            context_ids=(0, 1, 2), action_ids=(3, 5), logprobs=f32(-0.1, -2.7), rewards={"found": 0.1}, opens_row=True
        ),
        Turn(context_ids=(), action_ids=(4,), logprobs=(0.0,), version=3, finish=Finish.LENGTH, state_key="room-2"),
        Turn(
            context_ids=(0, 4),
            action_ids=(4, 4, 5),
            logprobs=f32(-1e-8, -30.5, -1.1),
            rewards={"exact_match": 1.0, "format": -0.2},
            version=4,
            opens_row=True,
        ),
    ),
    stop=StopReason.DONE,
    episode_seed=2**63 - 1,
    metrics={"success": 1.0, "tool_calls": 2.0},
    seconds=0.1 + 0.2,
)
FAILED = Trajectory(task=TASK, turns=(), stop=StopReason.ENV_FAILED, failure="timeout\nafter 3 s")
LONE = Trajectory(
    task=OTHER,
    turns=(Turn(context_ids=(1,), action_ids=(2,), logprobs=(-1.5,), opens_row=True),),
    stop=StopReason.TIMEOUT,
    tail_ids=(0, 4),
)
GROUPS = [Group(task=TASK, trajectories=(FULL, FAILED)), Group(task=OTHER, trajectories=(LONE,))]


def test_groups_come_back_equal(tmp_path: Path):
    path = tmp_path / "train-000003.parquet"
    write_trajectories(path, 3, GROUPS, {"advantages": {(0, 0): np.arange(6) / 4}}, decode)
    assert read_trajectories(path) == GROUPS
    assert [file.name for file in tmp_path.iterdir()] == ["train-000003.parquet"]


def test_what_several_trajectories_read_is_decoded_once(tmp_path: Path):
    decoded = []
    write_trajectories(tmp_path / "a.parquet", 0, GROUPS, None, lambda ids: decoded.append(tuple(ids)) or decode(ids))
    assert len(decoded) == len(set(decoded))


def test_the_file_explains_itself_to_any_reader(tmp_path: Path):
    path = tmp_path / "lr=1e-4" / "t.parquet"
    path.parent.mkdir()
    advantages = {(0, 0): [0.0, 0.25, 0.5, 0.75, 1.0, 1.25], (0, 1): []}
    logprobs = {(0, 0): [-1.0, -2.0, -3.0, -4.0, math.nan, math.nan]}
    write_trajectories(path, 3, GROUPS, {"advantages": advantages, "learner_logprobs": logprobs}, decode)
    rows = pq.ParquetFile(path).read().to_pylist()
    assert [(row["step"], row["group"], row["member"]) for row in rows] == [(3, 0, 0), (3, 0, 1), (3, 1, 0)]
    assert json.loads(rows[0]["task"])["data"]["question"] == "Wer gründete Ørsted?"
    assert rows[0]["reward"] == pytest.approx(0.9)
    assert dict(rows[0]["rewards"]) == {"found": 0.1, "exact_match": 1.0, "format": -0.2}
    assert (rows[1]["stop"], rows[1]["failure"]) == ("env_failed", "timeout\nafter 3 s")
    first, second, third = rows[0]["turns"]
    assert (first["context_text"], first["action_text"]) == ("<s> Who ?", "search </s>")
    assert [turn["advantages"] for turn in (first, second, third)] == [[0.0, 0.25], [0.5], [0.75, 1.0, 1.25]]
    assert [turn["learner_logprobs"] for turn in (first, second)] == [[-1.0, -2.0], [-3.0]]
    assert third["learner_logprobs"] == [-4.0, None, None], "unknown is null, which equals itself"
    assert [turn["entropies"] for turn in (first, second, third)] == [None] * 3
    assert [turn["version"] for turn in (first, second, third)] == [0, 3, 4]
    assert rows[2]["turns"][0]["advantages"] is None
    assert [row["tail_text"] for row in rows] == ["", "", "<s> Oslo"]
    assert read_trajectories(path) == GROUPS


def test_text_that_is_not_utf8_is_stored_as_far_as_it_can_be(tmp_path: Path):
    write_trajectories(tmp_path / "t.parquet", 0, [GROUPS[1]], None, lambda ids: "ok\ud83d")
    [row] = pq.ParquetFile(tmp_path / "t.parquet").read().to_pylist()
    assert row["turns"][0]["action_text"] == "ok?"


def test_advantages_of_another_length_are_our_own_bug(tmp_path: Path):
    with pytest.raises(AssertionError, match="one number per action token"):
        write_trajectories(tmp_path / "t.parquet", 0, GROUPS, {"advantages": {(0, 0): [1.0] * 5}}, decode)
    assert not list(tmp_path.iterdir())


def test_no_groups_make_an_empty_file(tmp_path: Path):
    write_trajectories(tmp_path / "t.parquet", 0, [], None, decode)
    assert read_trajectories(tmp_path / "t.parquet") == []


def test_files_that_hold_no_trajectories_are_one_line(tmp_path: Path):
    with pytest.raises(RunError, match=r"none\.parquet: no such file"):
        read_trajectories(tmp_path / "none.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(RunError, match=r"bad\.parquet: not a Parquet file$"):
        read_trajectories(tmp_path / "bad.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(RunError, match=r"trajectories of layout none, but this version of turnwise reads layout 6$"):
        read_trajectories(tmp_path / "other.parquet")


def test_files_from_before_tails_were_kept_are_read(tmp_path: Path):
    path = tmp_path / "t.parquet"
    write_trajectories(path, 0, GROUPS, None, decode)
    table = pq.ParquetFile(path).read().drop_columns(["tail_text", "tail_ids", "messages"])
    pq.write_table(table.replace_schema_metadata({"turnwise.layout": "1"}), path)
    [first, second] = read_trajectories(path)
    assert first == GROUPS[0]
    assert second.trajectories == (dataclasses.replace(LONE, tail_ids=()),)


def test_files_from_before_messages_were_kept_are_read(tmp_path: Path):
    path = tmp_path / "t.parquet"
    write_trajectories(path, 0, GROUPS, None, decode)
    table = pq.ParquetFile(path).read().drop_columns(["messages"])
    pq.write_table(table.replace_schema_metadata({"turnwise.layout": "2"}), path)
    assert read_trajectories(path) == GROUPS


def test_files_from_before_the_learner_scored_tokens_are_read(tmp_path: Path):
    path = tmp_path / "t.parquet"
    write_trajectories(path, 0, GROUPS, None, decode)
    table = pq.ParquetFile(path).read()
    rows = [
        {**row, "turns": [{k: v for k, v in t.items() if k not in PER_TOKEN[1:]} for t in row["turns"]]}
        for row in table.to_pylist()
    ]
    old = [field for field in SCHEMA.field("turns").type.value_type if field.name not in PER_TOKEN[1:]]
    place = SCHEMA.get_field_index("turns")
    schema = SCHEMA.set(place, pa.field("turns", pa.list_(pa.struct(old)))).with_metadata({"turnwise.layout": "3"})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    assert read_trajectories(path) == GROUPS


def test_times_of_turns_are_stored_and_files_from_before_are_read(tmp_path: Path):
    path = tmp_path / "t.parquet"
    timed = [dataclasses.replace(turn, seconds=0.5, env_seconds=0.25) for turn in LONE.turns]
    one = dataclasses.replace(LONE, turns=tuple(timed))
    write_trajectories(path, 0, [Group(task=one.task, trajectories=(one,))], None, decode)
    [group] = read_trajectories(path)
    assert {(turn.seconds, turn.env_seconds) for turn in group.trajectories[0].turns} == {(0.5, 0.25)}
    rows = pq.ParquetFile(path).read().to_pylist()
    times = ("seconds", "env_seconds")
    rows = [{**row, "turns": [{k: v for k, v in t.items() if k not in times} for t in row["turns"]]} for row in rows]
    old = [field for field in SCHEMA.field("turns").type.value_type if field.name not in times]
    place = SCHEMA.get_field_index("turns")
    schema = SCHEMA.set(place, pa.field("turns", pa.list_(pa.struct(old)))).with_metadata({"turnwise.layout": "4"})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    [group] = read_trajectories(path)
    assert {(turn.seconds, turn.env_seconds) for turn in group.trajectories[0].turns} == {(0.0, 0.0)}


def test_a_trajectory_without_tokens_is_stored_by_its_messages(tmp_path: Path):
    call = ToolCall(id="c1", name="search", arguments="{oops", problem="not JSON")
    messages = (
        Message(role="user", content="Wer gründete Ørsted?"),
        Message(role="assistant", content="", thinking="Look.", tool_calls=(call,)),
        Message(role="tool", content="nothing", tool_call_id="c1", name="search"),
    )
    turns = (Turn(rewards={"found": 0.1}, state_key="room-1"), Turn())
    worded = Trajectory(task=TASK, turns=turns, stop=StopReason.AGENT_QUIT, messages=messages)
    group = Group(task=TASK, trajectories=(worded,))
    path = tmp_path / "t.parquet"
    write_trajectories(path, 0, [group], None, None)
    assert read_trajectories(path) == [group]
    [row] = pq.ParquetFile(path).read().to_pylist()
    assert json.loads(row["messages"][0])["content"] == "Wer gründete Ørsted?"
    write_trajectories(path, 0, GROUPS, None, None)
    assert read_trajectories(path) == GROUPS, "tokens need no decoder either, but have no text then"


def test_a_long_context_costs_few_bytes(tmp_path: Path):
    rng = np.random.default_rng(0)
    ids = tuple(int(token) for token in rng.integers(0, 6, 20_000))
    turn = Turn(context_ids=ids, action_ids=(5,), logprobs=(0.0,), opens_row=True)
    group = Group(task=OTHER, trajectories=(Trajectory(task=OTHER, turns=(turn,), stop=StopReason.DONE),))
    write_trajectories(tmp_path / "t.parquet", 0, [group], None, lambda ids: "")
    # Six kinds of token hold log2(6) = 2.6 bits each: 6.5 kB, where int32 would take 80 kB.
    assert (tmp_path / "t.parquet").stat().st_size < 20_000
