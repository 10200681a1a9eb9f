"""Branches over HTTP: asked for, played in a process of their own, and shown beside what they left."""

import json
import sys

import pytest

from turnwise.errors import ConfigError
from turnwise.studio.answers import Answers
from turnwise.studio.branches import Branches, BranchRequest, parse_branch
from turnwise.studio.library import Library
from turnwise.studio.shelf import Shelf


def ask(client, run, **body):
    status, _, answer = client.ask(
        f"/api/runs/{run}/branch", "POST", json.dumps(body).encode(), Content_Type="application/json"
    )
    return status, json.loads(answer)


STUB = """
import shutil, sys
save = next(one for one in sys.argv if one.startswith("--save=")).removeprefix("--save=")
shutil.copy({stored!r}, save)
print("a transcript")
print("reward +1.25, was +1.25; asked for", *sys.argv[2:3], *sys.argv[4:])
print("saved")
"""


def test_a_branch_is_played_in_a_process_and_shown_beside_its_origin(folder):
    """What plays is a stand-in here; `make test-studio` plays a real one in the page."""
    library = Library([folder])
    run = next(run for run in library.runs() if run.name == "first")
    stub = STUB.format(stored=str(run.directory.trajectory_file("evaluate", 2)))
    branches = Branches([sys.executable, "-c", stub])
    answers = Answers(Shelf(library), branches)
    made = answers.branch(run.id, {"trajectory": "train-1/0/0", "from_turn": 2, "temperature": 0.5, "seed": None})
    assert branches.find(made["branch"]).made.wait(30)
    answer = answers.branched(made["branch"])
    assert (answer["state"], answer["asked"]["temperature"]) == ("done", 0.5)
    assert answer["line"] == "reward +1.25, was +1.25; asked for train-1/0/0 --from-turn=2 --temperature=0.5"
    origin, branch = answer["trajectories"]
    assert (origin["name"], branch["label"]) == ("train-1/0/0", "the branch")
    assert answer["differs"] == [None, {"turn": 1, "part": "sampled", "place": 0}]
    further = answers.branch(run.id, {"trajectory": "train-1/0/0", "from_turn": 2, "parent": made["branch"]})
    assert branches.find(further["branch"]).made.wait(30)
    again = answers.branched(further["branch"])
    assert again["trajectories"][0]["label"] == "the branch before"
    assert again["line"].split()[6].endswith("branch-000000.parquet")
    assert again["differs"] == [None, None]


def test_mistakes_are_told(client, first):
    assert ask(client, first, trajectory="train-1/0/0")[1] == {"error": "branch: give a trajectory and from_turn"}
    status, answer = ask(client, first, trajectory="train-7/0/0", from_turn=1)
    assert (status, "no such file" in answer["error"]) == (404, True)
    assert "did you mean 'action'" in ask(client, first, trajectory="train-1/0/0", from_turn=1, acton="x")[1]["error"]
    assert client.ask(f"/api/runs/{first}/branch", "POST", b"[", Content_Type="application/json")[0] == 400
    assert client.ask("/api/branches/123abc")[0] == 404
    assert (
        client.ask(f"/api/runs/{first}/branch", "POST", b"{}", Content_Type="application/json", Cookie=None)[0] == 401
    )


@pytest.mark.parametrize(
    "wrong", [{"from_turn": 1.5}, {"seed": True}, {"temperature": -1}, {"temperature": "hot"}, {"action": 3}]
)
def test_fields_have_their_kind(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        parse_branch({"trajectory": "train-1/0/0", "from_turn": 1, **wrong})


def test_no_text_becomes_an_option():
    asked = BranchRequest(trajectory="train-1/0/0", from_turn=2, action="--trust", edit_result="-x --save=/etc/passwd")
    assert asked.options() == ["--from-turn=2", "--edit-result=-x --save=/etc/passwd", "--action=--trust"]


def test_a_branch_that_fails_tells_its_last_line(folder):
    run = next(run for run in Library([folder]).runs() if run.name == "first")
    broken = Branches([sys.executable, "-c", "import sys; sys.exit('error: no such thing')"])
    branch = broken.find(broken.start(run, BranchRequest(trajectory="train-1/0/0", from_turn=1)))
    assert branch.made.wait(30)
    assert (branch.state, branch.line) == ("failed", "no such thing")
