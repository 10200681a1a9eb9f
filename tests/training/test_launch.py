"""Two processes under torchrun make the run that one process makes, resume it, and fail as one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import turnwise
from tiny_runs import SFT, records, tiny_data, weights
from turnwise.cli.main import main
from turnwise.errors import ConfigError
from turnwise.runs import RunDirectory, load_state
from turnwise.training.launch import launch, single_process

ONE_THREAD = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(turnwise.__file__).parents[1])}
BREAKING = """
import os, sys
from turnwise.cli.main import main
from turnwise.errors import TurnwiseError
from turnwise.learner.group import LearnerWorker

def fail(self, batch, *, seed):
    raise TurnwiseError("out of paper")

if os.environ["RANK"] == "1":
    LearnerWorker.learn = fail
sys.exit(main(sys.argv[1:]))
"""
"""The command, in whose second process no update succeeds."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """With a critic, a reference and a cold start that finds the words: all that every rank must have alike."""
    path = tmp_path_factory.mktemp("launch") / "game.yaml"
    sections = {"sft": SFT, "credit": {"estimator": "gae"}, "loss": {"kl_coef": 0.05}, "evaluate": {"tasks": 2}}
    path.write_text(yaml.safe_dump(tiny_data(**sections)))
    return path


def torchrun(*arguments, cwd):
    """`-m --`: else torchrun, under Python 3.11, takes `--run` for an option of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    return subprocess.run(
        [*command, "turnwise", *map(str, arguments)],
        env=os.environ | ONE_THREAD,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TURNWISE_SCALE") != "long", reason="make test-scale runs it")
def test_two_processes_update_while_the_first_one_samples(tmp_path):
    """Sharded: the update of rank 0 runs in a thread, and its collectives meet those of the other rank."""
    path = tmp_path / "game.yaml"
    rollout = {"groups_per_step": 4, "group_size": 4, "turn_tokens": 4, "max_turns": 3, "staleness": 1}
    path.write_text(yaml.safe_dump(tiny_data(steps=3, rollout=rollout, evaluate={"tasks": 2})))
    run = torchrun("train", path, "learner.shard=true", "--run", "two", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    trained = records(RunDirectory.open(tmp_path / "two"), "train")
    assert [record["staleness/max"] for record in trained] == [0, 1, 1]


@pytest.mark.slow
def test_two_processes_make_the_run_that_one_makes(recipe, tmp_path):
    """The first step is made by two processes that share one copy of the model, the second by two with one each."""
    assert main(["train", str(recipe), "steps=2", "--run", str(tmp_path / "one")]) == 0
    began = torchrun("train", recipe, "steps=1", "learner.shard=true", "--run", "two", cwd=tmp_path)
    assert began.returncode == 0, began.stderr
    resumed = torchrun("train", recipe, "steps=2", "--run", "two", "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("resumed after step 1") == 1, "rank 0 alone speaks"
    one, two = RunDirectory.open(tmp_path / "one"), RunDirectory.open(tmp_path / "two")
    for stage in ("sft", "train"):
        assert len(records(one, stage)) == len(records(two, stage)) > 1
        for expected, found in zip(records(one, stage), records(two, stage), strict=True):
            layout = ("batch/padding_share", "batch/shared_share")  # other rows share a micro-batch
            measured = {name: value for name, value in expected.items() if name not in layout}
            assert found.keys() == expected.keys()
            assert {name: found[name] for name in measured} == pytest.approx(measured, abs=1e-4)
    assert all(record["policy/grad_norm"] > 1e-3 for record in records(two, "train")), "there is something to compare"
    for name, weight in weights(one, 2).items():
        torch.testing.assert_close(weights(two, 2)[name], weight, atol=1e-4, rtol=0, msg=name)
    critics = [load_state(run.checkpoints / "step-000002" / "state.pt")["learner"]["critic"] for run in (one, two)]
    for name, weight in critics[0].items():
        torch.testing.assert_close(critics[1][name], weight, atol=1e-3, rtol=0, msg=name)
    # And one process goes on where two stopped.
    assert main(["train", str(recipe), "steps=3", "--run", str(tmp_path / "two"), "--resume"]) == 0


def two_processes(*arguments, cwd):
    """Exit codes and lines on standard error, by rank; without torchrun, which would end one that is left."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    meeting = ONE_THREAD | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BREAKING, *map(str, arguments)],
            env=os.environ | meeting | {"RANK": str(rank)},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=200)[1].strip().splitlines() for process in ranks]
    return [process.returncode for process in ranks], said


@pytest.mark.slow
def test_a_mistake_is_one_line_from_rank_0_and_ends_all(recipe, tmp_path):
    codes, (first, second) = two_processes("train", recipe, "credit.estimatr=gae", "--run", "run", cwd=tmp_path)
    assert codes == [2, 0]
    assert len(first) == 1
    assert first[0].startswith("error: credit.estimatr: unknown key")
    assert second == []
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others_with_one_line(recipe, tmp_path):
    codes, (first, second) = two_processes("train", recipe, "sft=null", "--run", "run", cwd=tmp_path)
    assert codes == [2, 2]
    assert second == ["error: out of paper"]
    assert len(first) == 1
    assert first[0].startswith("error: another process of this run has ended")
    assert first[0].endswith("continue with --resume")


def test_one_process_launches_by_itself(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert launch(lambda learners: "trained") == "trained"
    with pytest.raises(ConfigError, match="a mistake"):
        launch(lambda learners: (_ for _ in ()).throw(ConfigError("a mistake")))


def test_what_runs_in_one_process_refuses_torchrun(monkeypatch):
    """Every one of its processes would write into the same folder."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"^torchrun: this runs in one process: [^\n]*$"):
        single_process()
