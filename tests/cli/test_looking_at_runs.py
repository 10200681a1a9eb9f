"""`turnwise runs` and `turnwise show`: runs at a glance, and any trajectory in words."""

import os
import re
import subprocess
import sys
import time

import pytest

from tiny_runs import run_tiny
from turnwise.cli.main import main
from turnwise.runs import RunDirectory, read_metrics, write_trajectories
from turnwise.runs.episodes import read_episode
from turnwise.runs.listing import describe_run, find_runs, show_age
from turnwise.types import Group, StopReason, Task, Trajectory, Turn


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: one finished, one that stopped long ago, and one whose metrics are damaged."""
    folder = tmp_path_factory.mktemp("looking") / "runs"
    run_tiny(folder / "done", steps=2, evaluate={"tasks": 4, "every": 1})
    stopped = RunDirectory.create(folder / "old" / "stopped", "env: {name: bandit}\nsteps: 9\n")
    record = '{"step": 0, "stage": "evaluate", "evaluate/success": 0.5}'
    stopped.metrics.write_text(record + '\n{"step": 4, "stage": "train"}\n')
    for file in (stopped.metrics, stopped.config):
        os.utime(file, (time.time() - 7300,) * 2)
    broken = RunDirectory.create(folder / "broken", "env: {name: bandit}\nsteps: 9\n")
    broken.metrics.write_text("not json\n")
    return folder


def words(capsys):
    return [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]


def test_runs_are_listed(runs, capsys):
    assert main(["runs", str(runs)]) == 0
    head, *lines = words(capsys)
    assert head == ["run", "status", "steps", "best success", "last", "environment", "credit", "age"]
    table = {line[0]: line[1:] for line in lines if len(line) > 2}
    scores = [r["evaluate/success"] for r in read_metrics(runs / "done" / "metrics.jsonl") if r["stage"] == "evaluate"]
    best = max(scores)
    done = table[str(runs / "done")]
    assert done[:4] == ["finished", "2/2", f"{best:.3f} at {scores.index(best)}", f"{scores[-1]:.3f}"]
    assert done[5] == "grpo"
    assert table[str(runs / "old" / "stopped")] == ["stopped", "4/9", "0.500 at 0", "0.500", "bandit", "2 h"]
    assert table[str(runs / "broken")][0] == "unreadable"
    assert "broken/metrics.jsonl:1: not a metrics record" in lines[-1][0], "and the reason why"


@pytest.mark.parametrize(("by", "first"), [("best", "stopped"), ("age", "broken"), ("name", "broken")])
def test_runs_are_sorted(runs, capsys, by, first):
    os.utime(runs / "broken" / "metrics.jsonl")
    os.utime(runs / "broken" / "config.yaml")
    assert main(["runs", str(runs), "--sort", by]) == 0
    assert words(capsys)[1][0].endswith(first)


def test_a_run_that_records_is_training(runs):
    assert describe_run(runs / "old" / "stopped", now=time.time() - 7200).status == "training"


def test_checkpoints_are_no_runs(runs):
    assert list(find_runs(runs)) == [runs / "broken", runs / "done", runs / "old" / "stopped"]


def test_a_folder_without_runs_is_one_line(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 2
    assert "no runs in it; make one with turnwise train" in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_ages():
    assert [show_age(s) for s in (5, 119, 7200, 200_000)] == ["5 s", "2 min", "2 h", "2 d"]


def test_trajectories_are_listed(runs, capsys):
    assert main(["show", str(runs / "done")]) == 0
    *_, count, hint = capsys.readouterr().out.splitlines()
    assert count == "20 of 44 that match, 44 in all", "three evaluations of 4 and two steps of 16"
    assert hint == f"read one with: turnwise show {runs / 'done'} evaluate-0/0/0"


@pytest.mark.parametrize(
    ("options", "number"),
    [(["--stage", "train"], 32), (["--step", "1"], 20), (["--stage", "train", "--step", "2"], 16), (["--failed"], 0)],
)
def test_filters(runs, capsys, options, number):
    assert main(["show", str(runs / "done"), *options, "--number", "0"]) == 0
    assert f"{number} of {number} that match" in capsys.readouterr().out


def test_best_and_worst(tmp_path, capsys):
    run = RunDirectory.create(tmp_path / "run", "env: {name: bandit}\n")
    paid = [
        Trajectory(task=Task(id=f"t{place}"), turns=(Turn(rewards={"game": reward}),), stop=StopReason.DONE)
        for place, reward in enumerate((0.5, -1.0, 2.0))
    ]
    failed = Trajectory(task=Task(id="t3"), turns=(), stop=StopReason.ENV_FAILED, failure="no\nnetwork [red]")
    groups = [Group(task=one.task, trajectories=(one,)) for one in (*paid, failed)]
    write_trajectories(run.trajectory_file("train", 1), 1, groups, None, None)
    for option, order in (("--best", ["+2", "+0.5", "-1"]), ("--worst", ["-1", "+0.5", "+2"])):
        assert main(["show", str(run.path), option]) == 0
        assert [line[1] for line in words(capsys)[1:-2]] == order, "one that failed is neither"
    assert main(["show", str(run.path), "--failed"]) == 0
    (line,) = words(capsys)[1:-2]
    assert line == ["train-1/3/0", "–", "–", "env_failed no network [red]", "t3"]


def test_a_trajectory_in_words(runs, capsys):
    assert main(["show", str(runs / "done"), "train-1/0/0", "--number", "3"]) == 0
    printed = capsys.readouterr().out
    episode = read_episode(RunDirectory.open(runs / "done"), "train-1/0/0")
    assert printed.splitlines()[0] == f"train-1/0/0  task {episode.line.task_id}"
    for part in ("╭─ user ", "│ sun ", "╭─ assistant, turn 1 ", "mean logprob", "sampler gap", "ended: "):
        assert part in printed
    (advantage,) = {one for turn in episode.turns for one in turn.advantages}
    assert f"advantage {advantage:+.3g}" in printed
    right = episode.trajectory.turns[0].rewards["right"]
    assert f"right {right:+g} · advantage" in printed


def test_what_a_model_wrote_cannot_steer_the_terminal(tmp_path, capsys):
    run = RunDirectory.create(tmp_path / "run", "env: {name: bandit}\n")
    evil = Trajectory(
        task=Task(id="\x1b[2J"),
        turns=(Turn(context_ids=(1,), action_ids=(2,), logprobs=(0.0,), opens_row=True),),
        stop=StopReason.DONE,
    )
    groups = [Group(task=evil.task, trajectories=(evil,))]
    write_trajectories(run.trajectory_file("train", 1), 1, groups, None, lambda ids: "\x1b]0;title\x07 [bold]loud[/]")
    assert main(["show", str(run.path), "train-1/0/0"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b]" not in printed
    assert "\x07" not in printed
    assert "[bold]loud[/]" in printed


def test_looking_needs_no_torch(runs):
    code = "import sys; from turnwise.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for command in (["runs", str(runs)], ["show", str(runs / "done")], ["show", str(runs / "done"), "train-1/0/0"]):
        result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")
