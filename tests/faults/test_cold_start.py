"""A cold start that was killed or stopped goes on from its own checkpoints, exactly, and plays nothing twice."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

import tiny_runs
from processes import SignalledAt, begin_training, wait_until
from tiny_runs import Died, records, run_tiny, same_weights, weights
from turnwise.errors import RunInterrupted
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.training.sft import play_expert

LORA = {"rank": 4, "dropout": 0.1}
SFT = {"demonstrations": 64, "batch": 8, "optimizer": {"lr": 1e-2, "schedule": "cosine"}}
SUPPORT = str(Path(tiny_runs.__file__).parent)
LONG = os.environ.get("TURNWISE_FAULTS") == "long"


@pytest.fixture(scope="module")
def settings(cold):
    """Adapters with dropout: noise that must be drawn again as it was; eight steps, saved after every third."""
    return {
        "model": {"name": str(cold), "lora": LORA},
        "steps": 1,
        "sft": SFT,
        "checkpoint": {"sft_every": 3},
        "evaluate": {"tasks": 2, "untrained": True},
    }


@pytest.fixture(scope="module")
def unbroken(settings, tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("unbroken") / "run", **settings)


@pytest.fixture
def plays(monkeypatch):
    """Every time that demonstrations are played."""
    calls = []

    async def play(*args, **options):
        calls.append(options["seed"])
        return await play_expert(*args, **options)

    monkeypatch.setattr("turnwise.training.cold_start.play_expert", play)
    return calls


def assert_equal(run: RunDirectory, other: RunDirectory) -> None:
    assert same_weights(weights(run, 0), weights(other, 0))
    assert same_weights(weights(run, 1), weights(other, 1))
    assert records(run) == records(other)
    assert not run.sft_checkpoints.exists(), "training has a checkpoint, so those of the cold start are gone"


def die_in_cold_start(folder, step, settings, **options):
    with pytest.raises(Died):
        run_tiny(folder, die=lambda *met: met == ("cold start", step), **{**settings, **options})
    return RunDirectory.open(folder)


@pytest.mark.parametrize(("died", "saved"), [(1, 0), (4, 3), (3, 0), (8, 6)][: 4 if LONG else 2])
def test_a_cold_start_that_died_goes_on_from_its_last_checkpoint(died, saved, settings, unbroken, tmp_path):
    run = die_in_cold_start(tmp_path / "run", died, settings)
    assert Checkpoints(run.sft_checkpoints).steps()[-1] == saved
    shown = []
    run_tiny(run.path, resume=True, die=lambda *met: shown.append(met) and False, **settings)
    steps = [number for event, number in shown if event == "cold start"]
    assert steps == list(range(saved + 1, 9))
    assert not any(event in ("demonstrations", "evaluation after step 0") for event, _ in shown[: len(steps)])
    assert_equal(run, unbroken)


def test_demonstrations_that_are_stored_are_not_played_again(settings, unbroken, tmp_path, plays):
    run = die_in_cold_start(tmp_path / "run", 2, settings)
    before = run.trajectory_file("sft", 0).read_bytes()
    run_tiny(run.path, resume=True, **settings)
    assert len(plays) == 1
    assert run.trajectory_file("sft", 0).read_bytes() == before
    assert_equal(run, unbroken)


@pytest.mark.parametrize("damage", ["flipped", "missing"] if LONG else ["flipped"])
def test_demonstrations_whose_file_is_broken_are_played_again(damage, settings, unbroken, tmp_path, caplog, plays):
    run = die_in_cold_start(tmp_path / "run", 5, settings)
    file = run.trajectory_file("sft", 0)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink() if damage == "missing" else file.write_bytes(content)
    run_tiny(run.path, resume=True, **settings)
    assert "sft-000000.parquet is not as it was written: the demonstrations are played again" in caplog.text
    assert len(plays) == 2
    assert_equal(run, unbroken)


def test_a_broken_checkpoint_of_the_cold_start_is_noticed_and_the_one_before_used(settings, unbroken, tmp_path, caplog):
    run = die_in_cold_start(tmp_path / "run", 7, settings)
    (run.sft_checkpoints / "step-000006" / "state.pt").write_bytes(b"")
    run_tiny(run.path, resume=True, **settings)
    assert "step-000006 is broken" in caplog.text
    assert "using step-000003" in caplog.text
    assert_equal(run, unbroken)


def test_its_checkpoints_may_be_by_the_clock(settings, unbroken, tmp_path, monkeypatch):
    timed = {**settings, "checkpoint": {"sft_every": 0, "sft_minutes": 5}}
    run = die_in_cold_start(tmp_path / "run", 7, timed)
    assert Checkpoints(run.sft_checkpoints).steps() == [0], "five minutes have not passed"
    shutil.rmtree(run.path)
    run = die_in_cold_start(tmp_path / "run", 7, timed, checkpoint={"sft_every": 0, "sft_minutes": 1e-9})
    assert Checkpoints(run.sft_checkpoints).steps() == [0, 5, 6]
    assert_equal(run_tiny(run.path, resume=True, **timed), unbroken)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_cold_start_saves_its_step(number, settings, unbroken, tmp_path):
    name = "Ctrl-C" if number is signal.SIGINT else "SIGTERM"
    with pytest.raises(RunInterrupted, match=f"{name}: stopped after step 2 of the cold start, which is saved"):
        run_tiny(tmp_path / "run", die=SignalledAt(number, "cold start", 2), **settings)
    run = RunDirectory.open(tmp_path / "run")
    assert Checkpoints(run.sft_checkpoints).steps() == [0, 2]
    assert len(records(run, "sft")) == 2
    assert_equal(run_tiny(run.path, resume="auto", **settings), unbroken)


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ("evaluation after step 0", "in the evaluation of the untrained model, which starts again"),
        ("demonstrations", "before the cold start; its demonstrations are played again"),
    ],
)
def test_stages_with_nothing_to_save_stop_at_once(event, where, settings, unbroken, tmp_path):
    shown = []

    def signalled(*met):
        shown.append(met)
        return SignalledAt(signal.SIGINT, event, 1)(*met)

    with pytest.raises(RunInterrupted, match=f"Ctrl-C: stopped {where}"):
        run_tiny(tmp_path / "run", die=signalled, **settings)
    assert shown[-1] == (event, 1), "the second was not waited for"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_equal(run_tiny(tmp_path / "run", resume="auto", **settings), unbroken)


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="takes a minute: TURNWISE_FAULTS=long")
@pytest.mark.parametrize("stage", ["demonstrations", "prepare", "untrained"])
def test_a_process_that_hangs_before_training_answers_ctrl_c_within_a_second(stage, settings, tmp_path):
    """Code that never returns, in the constructor, in an expert's move, in a step: nothing is waited for."""
    mark, script = tmp_path / "mark", tmp_path / "hangs.py"
    there = {"prepare": "__init__(self)", "demonstrations": "expert(self)", "untrained": "state_key(self)"}[stage]
    script.write_text(
        f"import pathlib, sys, time\nsys.path.insert(0, {SUPPORT!r})\nfrom tiny_runs import Signals\n"
        f"class Hangs(Signals):\n    def {there}:\n"
        f"        pathlib.Path({str(mark)!r}).touch()\n        while True: time.sleep(0.05)\n"
    )
    data = {**settings, "env": {"name": f"{script}:Hangs"}, "model": dict(settings["model"])}
    if stage == "untrained":
        data["sft"] = None
    process = begin_training(tmp_path, "--resume=auto", **data)
    wait_until(mark.exists, process)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 75, error
    assert "Ctrl-C: stopped" in error
    assert time.monotonic() - began < 5, "about a second on a quiet machine"


def test_a_second_ctrl_c_raises_where_the_code_is(tmp_path, settings):
    """In a notebook it must not end the kernel, so it is a KeyboardInterrupt, and nothing is saved."""

    def twice(*met):
        if met == ("cold start", 2):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return False

    with pytest.raises(KeyboardInterrupt):
        run_tiny(tmp_path / "run", die=twice, **settings)
    assert Checkpoints(tmp_path / "run" / "checkpoints" / "sft").steps() == [0]


@pytest.mark.slow
@pytest.mark.parametrize("place", range(6 if LONG else 1))
def test_a_cold_start_that_was_killed_goes_on_as_if_it_had_not(place, settings, unbroken, tmp_path):
    """SIGKILL, at a moment that nobody chose."""
    process = begin_training(tmp_path, **settings)
    wait_until((tmp_path / "run" / "checkpoints" / "sft" / "step-000000").exists, process)
    time.sleep(random.random() * 0.4)
    process.kill()
    process.communicate()
    again = begin_training(tmp_path, "--resume", **settings)
    error = again.communicate(timeout=300)[1]
    assert again.returncode == 0, error
    assert_equal(RunDirectory.open(tmp_path / "run"), unbroken)
