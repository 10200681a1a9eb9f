"""Stored trajectories scored anew: the reward that was paid gives what was paid, another one is counted by group."""

import json
import re

import pytest

from studio_runs import decode, episode, groups_of
from turnwise.cli.main import main
from turnwise.evaluation.rescore import as_episode, find_rewards, rescore_now, summarise
from turnwise.runs import RunDirectory, write_trajectories
from turnwise.runs.episodes import read_episode, read_episodes
from turnwise.types import Group

PLAIN = """
import json

from turnwise import reward

def brief(episode):
    return -len(episode.answer or "") / 100

@reward
def cautious(episode) -> float:
    if "Ostend" in (episode.answer or ""):
        raise ValueError("no such town")
    return 1.0 if episode.tool_calls else 0.0

def sad(episode):
    raise ValueError(episode.task.id)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = RunDirectory.create(tmp_path_factory.mktemp("rescored") / "run", "steps: 1\n")
    write_trajectories(run.trajectory_file("train", 1), 1, groups_of(1), None, decode)
    return run


@pytest.fixture
def rewards_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(PLAIN)
    return file


def test_an_episode_is_as_the_reward_saw_it(run):
    seen = as_episode(read_episode(run, "train-1/0/0"))
    assert [message.role for message in seen.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (seen.answer, seen.tool_calls, seen.gold_answers) == ("Oslo", 1, ("Oslo",))
    assert seen.messages[2].thinking == "Look it up."
    assert as_episode(read_episode(run, "train-1/1/0")).answer is None, "a limit ended it, not an answer"


def test_a_plain_function_of_a_file_scores(run, rewards_file):
    scored = rescore_now(read_episodes(run, "train", 1), find_rewards([f"{rewards_file}:brief"]))
    assert [one.rescored for one in scored[:3]] == [-0.04, -0.06, -0.06]
    assert scored[5].problem.startswith("it failed")
    (summary,) = summarise(scored)
    assert (summary.scored, summary.left_out, summary.groups) == (5, 1, 2)
    assert (summary.teaching, summary.teaching_now) == (1, 2)
    assert summary.rescored == pytest.approx((-0.04 - 0.06 - 0.06 - 0.0 - 0.20) / 5)


def test_what_raises_is_left_out_and_named(run, rewards_file, tmp_path, capsys):
    saved = tmp_path / "scores.jsonl"
    asked = ["rescore", str(run.path), f"--reward={rewards_file}:cautious", "--reward=exact_match", f"--save={saved}"]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "reward 'cautious' raised ValueError: no such town" in told
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [line["trajectory"] for line in lines if "left_out" in line] == ["train-1/0/1", "train-1/1/2"]
    assert lines[0]["rescored"] == {"cautious": 1.0, "exact_match": 0.0}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--reward=exact_mach"], "did you mean"),
        (["--reward=exact_match", "--step=9"], "no trajectories of that kind"),
        (["--reward=OWN:sad"], "none of 6 trajectories could be scored; the first: reward 'sad' raised"),
        (["--reward=OWN:brif"], "has no 'brif' (did you mean 'brief'?); its rewards are: brief, cautious, sad\n"),
    ],
)
def test_mistakes_are_one_line(run, rewards_file, capsys, arguments, told):
    arguments = [one.replace("OWN", str(rewards_file)) for one in arguments]
    assert main(["rescore", str(run.path), *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_many_that_raise_are_counted_and_the_first_named(run, tmp_path, capsys):
    """One reason each, as long as a run, would hide the table."""
    file = tmp_path / "picky.py"
    file.write_text("def picky(episode):\n    assert episode.answer == 'Oslo', episode.answer\n    return 1.0\n")
    files = [run.trajectory_file("train", step) for step in (2, 3)]
    for step, path in enumerate(files, 2):
        write_trajectories(path, step, groups_of(step), None, decode)
    try:
        assert main(["rescore", str(run.path), f"--reward={file}:picky"]) == 0
    finally:
        for path in files:
            path.unlink()
    reasons = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert len(reasons) == 4
    assert reasons[0].startswith("left out: train-1/0/1: reward 'picky' raised AssertionError: Ostend")
    assert re.fullmatch(r"left out: \d+ more; --save FILE writes each with its reason", reasons[3])


def test_a_built_in_reward_reads_the_answer(tmp_path):
    """What is read back from tokens is what the environment saw; exact match ignores case, articles and marks."""
    paid = [
        episode("task-c", word)
        for word in ("<answer>Oslo</answer>", "<answer>Rome</answer>", "<answer>the oslo!</answer>", "Oslo")
    ]
    group = Group(task=paid[0].task, trajectories=tuple(paid))
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    write_trajectories(run.trajectory_file("train", 1), 1, [group], None, decode)
    scored = rescore_now(read_episodes(run, "train", 1), find_rewards(["exact_match"]))
    assert [one.rescored for one in scored] == [1.0, 0.0, 1.0, 0.0]
