"""The browser and the token view: filters against a loop over all trajectories, numbers against the stored ones."""

import statistics

import numpy as np
import pytest

from studio_runs import BOARD, EVIL, decode, groups_of, per_token
from turnwise.runs import RunDirectory
from turnwise.runs.episodes import first_difference, list_episodes, read_episode, trajectory_files
from turnwise.runs.store import write_trajectories
from turnwise.studio.boards import read_legend, split_boards
from turnwise.studio.episode import read_tools
from turnwise.studio.index import Index, Query, match_rows
from turnwise.studio.library import Library
from turnwise.types import Group, Message, StopReason, Task, Trajectory, Turn


@pytest.fixture(scope="module")
def lines(folder):
    return list(list_episodes(trajectory_files(RunDirectory(folder / "first")), []))


def names(client, first, query):
    return [row["name"] for row in client.get(f"/api/runs/{first}/trajectories?{query}")["rows"]]


@pytest.mark.parametrize(
    ("query", "keep"),
    [
        ("", lambda line: True),
        ("stage=train", lambda line: line.stage == "train"),
        ("stage=train&step=2", lambda line: line.stage == "train" and line.step == 2),
        ("task=task-b", lambda line: line.task_id == "task-b"),
        ("environment=encyclopedia", lambda line: True),
        ("environment=sokoban", lambda line: False),
        ("stop=max_turns", lambda line: line.stop == "max_turns"),
        ("success=yes", lambda line: bool(line.success) and not line.failed),
        ("success=no", lambda line: not line.success and not line.failed),
        ("success=failed", lambda line: line.failed),
        ("errors=1", lambda line: line.metrics["tool_errors"] > 0),
        ("channel=exact_match", lambda line: line.rewards.get("exact_match", 0) != 0),
        ("channel=exact_match&most=0.5", lambda line: line.rewards["exact_match"] <= 0.5),
        ("least=1", lambda line: line.reward >= 1),
        ("shortest=137&stage=train", lambda line: line.stage == "train" and line.group == 1 and line.member == 1),
    ],
)
def test_a_filter_finds_what_a_loop_finds(client, first, lines, query, keep):
    wanted = [line.name for line in lines if keep(line)]
    assert names(client, first, query) == wanted
    assert wanted or query == "environment=sokoban"


def test_pages_and_counts(client, first, lines):
    page = client.get(f"/api/runs/{first}/trajectories?offset=5&limit=4")
    assert [row["name"] for row in page["rows"]] == [line.name for line in lines[5:9]]
    assert (page["found"], page["total"], page["pending"]) == (len(lines), len(lines), 0)
    assert page["facets"]["stops"] == [["done", 14], ["max_turns", 3], ["env_failed", 3]]
    assert page["facets"]["channels"] == ["exact_match", "found"]


def test_groups_that_teach_most_come_first_and_stay_together(client, first):
    rows = client.get(f"/api/runs/{first}/trajectories?stage=train&sort=spread&descending=1")["rows"]
    spread = statistics.pstdev([1.25, 0.25, 0.25])
    assert [row["spread"] for row in rows[:9]] == [pytest.approx(spread)] * 9
    assert [row["name"] for row in rows[:3]] == ["train-1/0/0", "train-1/0/1", "train-1/0/2"]
    assert {row["spread"] for row in rows[9:]} == {0.0}, "a failed member has no reward to differ by"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ostend", ["train-1/0/1", "train-2/0/1", "train-3/0/1"]),
        ("ANSWER AT 2", ["evaluate-2/0/0"]),
        ("again and", ["train-1/1/1", "train-2/1/1", "train-3/1/1"]),
        ("own.py:4", ["train-1/1/2", "train-2/1/2", "train-3/1/2"]),
        ("no such words", []),
        (".*", []),
        ("%", []),
    ],
)
def test_a_search_finds_text_as_it_is(client, first, text, found):
    from urllib.parse import quote

    assert names(client, first, f"text={quote(text)}") == found
    assert names(client, first, f"text={quote(text)}&stage=sft") == []


def test_conversations_without_tokens_are_searched_too(tmp_path):
    run = RunDirectory.create(tmp_path / "chat", "steps: 1\n")
    talk = Trajectory(
        task=Task(id="t"),
        turns=(Turn(rewards={"won": 1.0}),),
        stop=StopReason.DONE,
        messages=(Message(role="user", content="Hej?"), Message(role="assistant", content="Tjena, Åse!")),
    )
    write_trajectories(run.trajectory_file("evaluate", 0), 0, [Group(task=talk.task, trajectories=(talk,))], None, None)
    from studio_runs import serving

    with serving(tmp_path) as client:
        name = client.run_id("chat")
        assert names(client, name, "text=tjena,%20%C3%A5SE") == ["evaluate-0/0/0"]
        shown = client.get(f"/api/runs/{name}/trajectory/evaluate-0/0/0")
        assert [block["role"] for block in shown["blocks"]] == ["user", "assistant"]
        assert shown["blocks"][1]["rewards"] == {"won": 1.0}


def test_new_files_are_read_newest_first_within_the_time_there_is(folder):
    run = next(run for run in Library([folder]).runs() if run.name == "first")
    index = Index(run)
    assert index.update(seconds=0.0) == (4, [])
    assert len(index.files) == 1
    assert index.update(seconds=60.0) == (0, [])
    assert [path.stem for path in index.files] == [
        "evaluate-000000",
        "evaluate-000002",
        "train-000001",
        "train-000002",
        "train-000003",
    ]


def test_the_file_that_is_asked_for_is_read_first(folder):
    run = next(run for run in Library([folder]).runs() if run.name == "first")
    index = Index(run)
    index.update(seconds=0.0, first=run.directory.trajectory_file("train", 1))
    assert [path.stem for path in index.files] == ["train-000001"]


def test_an_unknown_order_is_an_error_with_a_suggestion(client, first):
    status, _, body = client.ask(f"/api/runs/{first}/trajectories?sort=sprea")
    assert (status, b"did you mean 'spread'" in body) == (404, True)


def test_the_token_views_numbers_are_the_stored_ones(client, first, folder):
    stored = read_episode(RunDirectory(folder / "first"), "train-2/0/1")
    shown = client.get(f"/api/runs/{first}/trajectory/train-2/0/1")
    assert shown["pieces"] is True
    for turn, record, drawn in zip(stored.trajectory.turns, stored.turns, shown["turns"], strict=True):
        assert [token for token, _ in drawn["context"]] == list(turn.context_ids)
        assert "".join(text for _, text in drawn["context"]) == record.context_text
        ids, texts, logprobs, advantages, learner, entropies = (
            list(column) for column in zip(*drawn["action"], strict=True)
        )
        assert ids == list(turn.action_ids)
        assert "".join(texts) == record.action_text
        assert logprobs == list(turn.logprobs)
        assert (advantages, learner, entropies) == (record.advantages, record.learner_logprobs, record.entropies)
        assert (drawn["version"], drawn["opens_row"], drawn["rewards"]) == (turn.version, turn.opens_row, turn.rewards)
    given = per_token(groups_of(2))["advantages"][0, 1]
    assert [one[3] for turn in shown["turns"] for one in turn["action"]] == [float(np.float32(one)) for one in given]
    assert shown["episode_seed"] == str(2**61 + 7), "a script's numbers would round it"


def test_a_conversation_has_thoughts_calls_tools_boards_and_rewards(client, first):
    shown = client.get(f"/api/runs/{first}/trajectory/train-1/0/0")
    system, user, asked, found, answered = shown["blocks"]
    assert [block["role"] for block in shown["blocks"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert user["parts"][1]["board"] == [["_", "P", "_"], ["_", "O", "G"]]
    assert (asked["thinking"], asked["calls"][0]["name"]) == ("Look it up.", "search")
    assert shown["tools"] == {"search": "search(query): Searches the encyclopedia"}
    assert found["parts"] == [{"text": f"Found {EVIL}"}], "sent as text: what it is shown as is the page's duty"
    assert (asked["rewards"], answered["rewards"]) == ({"found": 0.25}, {"exact_match": 1.0})
    assert system["turn"] is None
    assert [row["name"] for row in shown["siblings"]] == ["train-1/0/0", "train-1/0/1", "train-1/0/2"]
    assert [row["name"] for row in shown["same_task"]][:2] == ["evaluate-0/0/0", "evaluate-2/0/0"]


def test_a_rewritten_conversation_opens_a_row(client, first):
    shown = client.get(f"/api/runs/{first}/trajectory/train-1/1/0")
    assert [turn["opens_row"] for turn in shown["turns"]] == [True, True]
    assert [block["rewritten"] for block in shown["blocks"]].count(True) == 1


def test_siblings_are_marked_where_they_part(client, first, folder):
    answer = client.get(f"/api/runs/{first}/compare?name=train-1/0/0&name=train-1/0/1&name=train-1/0/2")
    assert [one["name"] for one in answer["trajectories"]] == ["train-1/0/0", "train-1/0/1", "train-1/0/2"]
    assert answer["differs"] == [
        None,
        {"turn": 1, "part": "sampled", "place": 2},  # Os|lo and Os|tend
        {"turn": 1, "part": "sampled", "place": 0},
    ]
    run = RunDirectory(folder / "first")
    here, there = (read_episode(run, name) for name in ("train-1/0/0", "train-1/1/0"))
    difference = first_difference(here, there)
    assert difference is not None
    assert difference.part == "read"
    assert decode(here.trajectory.turns[0].context_ids[: difference.place]).endswith("What is task-")


def test_a_board_is_found_by_the_rules_that_the_agent_read():
    legend = read_legend("P: you. G: goal, pays 1. O: hole, ends it. _: ice.")
    text = f"Moved.\n{BOARD}\nGo on, P\n_ _"
    parts = split_boards(text, legend)
    assert [list(part) for part in parts] == [["text"], ["board"], ["text"]]
    joined = "\n".join(
        part["text"] if "text" in part else "\n".join(" ".join(row) for row in part["board"]) for part in parts
    )
    assert joined == text
    assert {mark: one.kind for mark, one in legend.items()} == {
        "P": "player", "G": "goal", "O": "hole", "_": "floor", "√": "done", "X": "lost"
    }  # fmt: skip
    assert split_boards("_ _\n_ _", read_legend("no rules")) == [{"text": "_ _\n_ _"}]


def test_tools_are_read_as_templates_write_them():
    spec = '{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {}}}'
    assert '"Looks"' in read_tools(f"You may call:\n<tools>\n{spec}\nbroken {{\n</tools>")["look"]
    assert read_tools("- add(a, b): Adds two numbers\nThen answer (now): yes") == {
        "add": "- add(a, b): Adds two numbers"
    }


def test_filters_work_on_nothing(folder):
    run = next(run for run in Library([folder]).runs() if run.name == "first")
    index = Index(run)
    index.update(seconds=60)
    assert index.columns is not None
    assert match_rows(index.columns, Query(channel="no_such", least=0.0)).tolist() == []
