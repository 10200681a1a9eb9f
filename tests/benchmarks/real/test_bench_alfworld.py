"""The figures of ALFWorld's rooms are read from what the engine answered, episode by episode."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.real.__main__ import main
from benchmarks.real.alfworld import _read_task

TURN = pa.struct([("context_text", pa.string()), ("action_text", pa.string())])
SCHEMA = pa.schema(
    [
        ("metrics", pa.map_(pa.string(), pa.float64())),
        ("turns", pa.list_(TURN)),
        ("tail_text", pa.string()),
    ]
)


def episode(task, *turns, success, tail=""):
    """Turns are (what the agent reads, what it replies); the first is preceded by the task."""
    read = [f"<|im_start|>user\n{seen}\nCommands: look, help<|im_end|>" for seen, _ in turns]
    read[0] = f"<|im_start|>system\nYour task is to: {task}.\nReply: ...<|im_end|>{read[0]}"
    said = [
        {"context_text": seen, "action_text": f"{reply}<|im_end|>"}
        for seen, (_, reply) in zip(read, turns, strict=True)
    ]
    return {"metrics": [("success", success)], "turns": said, "tail_text": tail}


ROOM = "You are in the middle of a room."
WON = episode(
    "heat some egg and put it in shelf",
    (ROOM, "<answer>go to desk 1</answer>"),
    ("You arrive at desk 1. On the desk 1, you see an egg 1, and a mug 2.", "<answer>take egg 1 from desk 1</answer>"),
    ("You pick up the egg 1 from the desk 1.", "<answer>go to shelf 1</answer>"),
    ("You arrive at shelf 1.", "<answer>move egg 1 to shelf 1</answer>"),
    success=1.0,
)
TURNED_AWAY = episode(
    "put a mug in bed",
    (ROOM, "<answer>go to desk 1</answer>"),
    ("You arrive at desk 1. On the desk 1, you see a mug 1.", "I take it."),
    ("No <answer> found.\nYou arrive at desk 1.", "<answer>go to desk 1</answer>"),
    success=0.0,
    tail="Unknown command: go to desk 1",
)
OTHER_THING = episode(
    "find two cup and put them in bed",
    (ROOM, "<answer>take mug 1 from desk 1</answer>"),
    ("You pick up the mug 1 from the desk 1.", "<answer>look</answer>"),
    success=0.0,
)


def test_episodes_are_counted_by_goal_and_by_how_far_they_came(tmp_path, capsys):
    file = tmp_path / "evaluate-000000.parquet"
    pq.write_table(pa.Table.from_pylist([WON, TURNED_AWAY, OTHER_THING], SCHEMA), file)
    assert main(["alfworld", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {goal: (one["episodes"], one["success"]) for goal, one in found["by_goal"].items()} == {
        "put": (1, 0.0),
        "heat": (1, 1.0),
        "two": (1, 0.0),
    }
    assert (found["episodes"], found["success"]) == (3, 0.3333)
    assert found["saw_the_thing"] == 0.667, "a mug is no cup"
    assert found["took_the_thing"] == 0.333
    assert found["commands_in_won_episodes"] == 4.0
    assert found["turns_refused"] == 0.222  # 2 of 9
    assert found["commands_given_before_in_the_episode"] == 0.111  # to the desk again, 1 of 9


@pytest.mark.parametrize(
    ("task", "read"),
    [
        ("put a mug in shelf", ("put", "mug")),
        ("put some mug on shelf", ("put", "mug")),
        ("put a clean mug in shelf", ("clean", "mug")),
        ("clean some mug and put it in shelf", ("clean", "mug")),
        ("put a hot mug in shelf", ("heat", "mug")),
        ("put a cool mug in shelf", ("cool", "mug")),
        ("put two mug in shelf", ("two", "mug")),
        ("find two mug and put them in shelf", ("two", "mug")),
        ("look at mug under the desklamp", ("light", "mug")),
        ("examine the mug with the desklamp", ("light", "mug")),
    ],
)
def test_alfreds_sentences_name_the_kind_of_goal_and_its_thing(task, read):
    assert _read_task(f"Your task is to: {task}.\nReply") == read
