"""The cold start's own decisions, with stand-ins for what it drives: what is played, saved, stored and gone on from."""

import asyncio
import random
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from tiny_runs import Signals, tiny_config
from turnwise.ledger import Ledger
from turnwise.training import cold_start as module
from turnwise.training.cold_start import ColdStart
from turnwise.training.interruption import StopSignal

DEMONSTRATIONS = ["one", "two", "three"]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Cold starts of one run, one after the other; `events` is what happened, in order, in all of them."""
    events = []

    async def play_expert(env, tasks, **given):
        events.append("play")
        return DEMONSTRATIONS

    def run_sft(learners, demonstrations, settings, *, done, saved, **given):
        events.append(f"imitate {demonstrations} after {done}, {'saved' if saved else 'new'}")
        yield from ({"step": step} for step in range(done, 3))

    monkeypatch.setattr(module, "play_expert", play_expert)
    monkeypatch.setattr(module, "run_sft", run_sft)
    monkeypatch.setattr(
        module, "read_trajectories", lambda file: [SimpleNamespace(trajectories=[one]) for one in DEMONSTRATIONS]
    )

    def record(demonstrations):
        events.append(f"record {demonstrations}")
        (tmp_path / "sft-0").write_text("demonstrations")

    def build():
        config = tiny_config(sft={"demonstrations": 3, "batch": 1, "epochs": 1}, checkpoint={"format": "whole"})
        recorder = MagicMock()
        recorder.record_demonstrations.side_effect = record
        recorder.flush.side_effect = lambda: events.append("flush")
        recorder.resume_sft.side_effect = lambda done, total: events.append(f"resume {done} of {total}")
        recorder.start_stage.side_effect = lambda name, total: events.append(f"stage {name} of {total}")
        recorder.record_sft_step.side_effect = lambda step, metrics: events.append(f"step {step}: {metrics['step']}")
        parts = SimpleNamespace(
            env=Signals(),
            train_tasks=Signals().tasks("train"),
            render=None,
            engine=SimpleNamespace(context_limit=64),
            loaded=SimpleNamespace(model=None),
            ledger=Ledger(),
        )
        directory = SimpleNamespace(
            sft_checkpoints=tmp_path / "checkpoints", trajectory_file=lambda stage, step: tmp_path / f"{stage}-{step}"
        )
        return ColdStart(config, config.sft, parts, MagicMock(), directory, recorder, StopSignal())

    build.events = events
    return build


def run(cold_start):
    asyncio.run(cold_start.run())


def test_a_new_cold_start_plays_stores_and_saves_before_it_trains(make, tmp_path):
    cold_start = make()
    assert not cold_start.resume()
    run(cold_start)
    assert make.events == [
        *("play", f"record {DEMONSTRATIONS}", "flush", "flush", "stage cold start of 3"),
        *(f"imitate {DEMONSTRATIONS} after 0, new", "step 1: 0", "step 2: 1", "step 3: 2"),
    ]
    assert (tmp_path / "checkpoints/step-000000/state.pt").is_file()
    assert (tmp_path / "checkpoints/step-000000/.pinned").exists()


def test_a_cold_start_that_had_only_played_goes_on_with_what_is_stored(make):
    run(make())
    make.events.clear()
    again = make()
    assert again.resume()
    run(again)
    assert make.events == [
        *("resume 0 of 3", "stage cold start of 3"),
        *(f"imitate {DEMONSTRATIONS} after 0, new", "step 1: 0", "step 2: 1", "step 3: 2"),
    ]


def test_a_resumed_cold_start_draws_the_numbers_that_would_have_followed_its_checkpoint(make):
    random.seed(5)
    run(make())
    expected = random.random()
    random.seed(6)
    assert make().resume()
    assert random.random() == expected


def test_demonstrations_that_are_not_as_they_were_written_are_played_again(make, tmp_path, caplog):
    run(make())
    make.events.clear()
    (tmp_path / "sft-0").write_text("other ones")
    again = make()
    assert again.resume()
    run(again)
    assert make.events[:4] == ["play", f"record {DEMONSTRATIONS}", "flush", "resume 0 of 3"]
    assert "is not as it was written" in caplog.text


def test_its_checkpoints_are_removed_once_and_none_need_be_there(make, tmp_path):
    cold_start = make()
    run(cold_start)
    cold_start.remove_checkpoints()
    assert not (tmp_path / "checkpoints").exists()
    cold_start.remove_checkpoints()


def test_checkpoints_that_are_broken_are_set_aside_when_it_goes_on(make, tmp_path):
    run(make())
    (tmp_path / "checkpoints/step-000002").mkdir()
    (tmp_path / "checkpoints/step-000002/state.pt").write_bytes(b"torn")
    assert make().resume()
    assert [one.name for one in sorted((tmp_path / "checkpoints").glob("step-*"))] == ["step-000000"]
