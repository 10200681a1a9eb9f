"""Checkpoints written behind the run: they hold the run as it was, and what goes on from one is exact."""

import gc
import os
import signal
import tempfile
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny_runs import Silent, cold_model, records, run_tiny, same_weights, tiny_config, weights
from turnwise.compute.device import copy_to_host
from turnwise.errors import RunError
from turnwise.models.loading import LoadedModel
from turnwise.runs import Checkpoints, load_state, read_metrics
from turnwise.runs.background import BackgroundWriter
from turnwise.stability.controller import Action
from turnwise.training import saving
from turnwise.training.callbacks import Callback
from turnwise.training.saving import CheckpointSaver
from turnwise.training.trainer import Trainer, run_training

STATE = {"step": 1}


class Late(BackgroundWriter):
    """A disk so slow that what is behind the run is only written when the run waits for it."""

    def __init__(self):
        super().__init__()
        self.later = []

    def submit(self, write):
        self.later.append(write)

    def flush(self):
        while self.later:
            self.later.pop(0)()

    def __exit__(self, kind, error, trace):
        self.flush()


class Prompt(BackgroundWriter):
    """A disk so fast that it is done whenever the run looks."""

    def check(self):
        self._jobs.join()
        super().check()


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """An untrained model wins nothing in this game, so its weights would not move, and a late copy be as good."""
    return {"model": {"name": str(cold_model(tmp_path_factory))}}


@pytest.fixture
def late(monkeypatch):
    monkeypatch.setattr(saving, "BackgroundWriter", Late)


def flat(value, where=""):
    """`{".learner.optimizer.state.0.exp_avg": tensor, ...}`"""
    if isinstance(value, dict):
        return {name: one for key, inner in value.items() for name, one in flat(inner, f"{where}.{key}").items()}
    if isinstance(value, list | tuple):
        return {name: one for key, inner in enumerate(value) for name, one in flat(inner, f"{where}.{key}").items()}
    return {where: value}


def assert_same(one: Path, other: Path):
    assert sorted(path.relative_to(one) for path in one.rglob("*")) == sorted(
        path.relative_to(other) for path in other.rglob("*")
    )
    for file in (path for path in (one / "model").rglob("*") if path.is_file()):
        assert file.read_bytes() == (other / file.relative_to(one)).read_bytes(), file
    first, second = (flat(load_state(folder / "state.pt")) for folder in (one, other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal(value, second[name]) if isinstance(value, torch.Tensor) else value == second[name]
        assert same, name


@pytest.mark.parametrize("writer", [BackgroundWriter, Late])
@pytest.mark.parametrize("sections", [{}, {"credit": {"estimator": "gae"}, "loss": {"kl_coef": 0.01}}])
def test_a_checkpoint_written_behind_the_run_is_the_one_written_in_place(tmp_path, monkeypatch, cold, sections, writer):
    """Written late, it holds what was copied when it was due: by then the next step has changed all that can change."""
    monkeypatch.setattr(saving, "BackgroundWriter", writer)
    folders = {}
    for async_save in (False, True):
        run = run_tiny(
            tmp_path / str(async_save),
            steps=3,
            checkpoint={"every": 1, "keep": 9, "async_save": async_save},
            **cold,
            **sections,
        )
        folders[async_save] = {path.name: path for path in (run.path / "checkpoints").iterdir()}
    assert sorted(folders[True]) == sorted(folders[False]) == [f"step-{step:06d}" for step in range(4)]
    for name, folder in folders[True].items():
        assert_same(folder, folders[False][name])
    assert not any(same_weights(weights(run, step), weights(run, step + 1)) for step in range(3)), (
        "each step moved them"
    )


def test_no_disk_is_written_but_the_run_s_own(tmp_path, monkeypatch):
    """A full /tmp is no reason to end a run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    run = run_tiny(tmp_path / "run", steps=2, checkpoint={"every": 1, "async_save": True})
    assert Checkpoints(run.path / "checkpoints").steps() == [0, 1, 2]


def test_a_rollback_waits_for_the_checkpoint_that_it_takes(tmp_path, monkeypatch, late):
    decide = Trainer._decide

    def roll_back(trainer, step, *given):
        decision = decide(trainer, step, *given)
        back = Action(kind="reduce_updates", step=step, rollback_to=2, lr_share=0.5)
        return replace(decision, action=back) if step == 3 else decision

    monkeypatch.setattr(Trainer, "_decide", roll_back)
    run = run_tiny(tmp_path / "run", steps=4, checkpoint={"every": 2, "keep": 9, "async_save": True})
    assert Checkpoints(run.path / "checkpoints").steps() == [0, 2, 4]


def test_a_run_is_over_when_its_last_checkpoint_is_whole(tmp_path, late):
    told = []

    class Watch(Callback):
        def on_run_begin(self, config, run):
            self.run = run

        def on_checkpoint(self, step, path):
            told.append((step, len([one for one in read_metrics(self.run.metrics) if one["stage"] == "end"])))

    config = tiny_config(steps=2, checkpoint={"every": 1, "async_save": True})
    run_training(config, tmp_path / "run", display=Silent(), callbacks=[Watch()])
    assert told == [(0, 0), (1, 0), (2, 0)], "the report of a finished run may name it"


def test_a_run_goes_on_from_one_as_if_it_had_not_been_ended(tmp_path, cold):
    whole = run_tiny(tmp_path / "whole", steps=4, checkpoint={"every": 1, "keep": 9, "async_save": True}, **cold)
    short = run_tiny(tmp_path / "short", steps=3, checkpoint={"every": 2, "keep": 9, "async_save": True}, **cold)
    last = short.path / "checkpoints" / "step-000003"
    for file in sorted(last.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    last.rmdir()  # as if it had been killed before: the newest is the one that was written behind step 3
    config = tiny_config(steps=4, checkpoint={"every": 1, "keep": 9, "async_save": True}, **cold)
    run_training(config, short.path, resume=True)
    assert_same(*(run.path / "checkpoints" / "step-000004" for run in (whole, short)))
    for metric in ("policy/loss", "rollout/reward"):
        first, second = ([one[metric] for one in records(run, "train")] for run in (whole, short))
        assert first == second


class Held:
    """A disk that writes only when it is let go."""

    def __init__(self, monkeypatch, error=None):
        self.go, self.begun = threading.Event(), threading.Event()
        self.error = error
        monkeypatch.setattr(saving, "copy_checkpoint", lambda state, loaded, learners: self.write)
        monkeypatch.setattr(saving, "write_checkpoint", lambda folder, **more: self.fill(folder))

    def write(self, folder):
        self.begun.set()
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        return self.fill(folder)

    def fill(self, folder):
        (folder / "weights").write_text("w")
        return {}


@pytest.fixture
def make(tmp_path):
    def build(**settings):
        told = []
        config = tiny_config(checkpoint={"async_save": True, **settings})
        loaded = LoadedModel(model=torch.nn.Linear(2, 2), tokenizer={}, context_limit=8)
        learners = type("Learners", (), {"is_sharded": False})()
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        saver = CheckpointSaver(config, checkpoints, loaded, learners, lambda step, path: told.append((step, path)))
        return saver, checkpoints, told

    return build


def test_the_run_goes_on_and_is_told_once_a_checkpoint_is_whole(make, monkeypatch):
    held = Held(monkeypatch)
    saver, checkpoints, told = make()
    with saver:
        saver.save(1, STATE, keep=(), async_save=True)
        assert held.begun.wait(10)
        saver.check()
        assert (told, checkpoints.steps()) == ([], []), "nothing is told of half a checkpoint"
        held.go.set()
        saver.wait()
        assert told == [(1, checkpoints.path(1))]
        saver.save(2, STATE, keep=(1,), async_save=False)
        assert [step for step, _ in told] == [1, 2], "in place: at once"
        saver.save(3, STATE, keep=(1,), async_save=True)
    assert [step for step, _ in told] == [1, 2, 3], "the end waits"
    assert checkpoints.steps() == [1, 2, 3], "the first is pinned"


def test_one_checkpoint_is_written_at_a_time(make, monkeypatch):
    held = Held(monkeypatch)
    saver, checkpoints, told = make()
    with saver:
        saver.save(1, STATE, keep=(), async_save=True)
        assert held.begun.wait(10)
        threading.Timer(0.1, held.go.set).start()
        saver.save(2, STATE, keep=(), async_save=True)
        assert [step for step, _ in told] == [1], "the second began after the first was whole"
    assert checkpoints.steps() == [1, 2]


def test_a_disk_that_fails_ends_the_run_at_its_next_step(make, monkeypatch):
    held = Held(monkeypatch, OSError(28, "No space left on device"))
    held.go.set()
    saver, checkpoints, told = make()
    saver.save(1, STATE, keep=(), async_save=True)
    with pytest.raises(OSError, match="No space left"):
        saver.wait()
    assert (told, checkpoints.steps()) == ([], [])


def test_a_checkpoint_that_is_whole_when_the_run_fails_is_reported(make, monkeypatch):
    held = Held(monkeypatch)
    saver, checkpoints, told = make()

    def fail():
        with saver:
            saver.save(1, STATE, keep=(), async_save=True)
            held.go.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert told == [(1, checkpoints.path(1))], "from which the run is resumed"


def test_the_tokenizer_is_copied_once_and_not_the_run_s_own(make, monkeypatch):
    used = []
    monkeypatch.setattr(
        saving, "copy_checkpoint", lambda state, loaded, learners: used.append(loaded) or (lambda _: {})
    )
    saver, _, _ = make()
    with saver:
        for step in (1, 2):
            saver.save(step, STATE, keep=(), async_save=True)
    assert used[0].tokenizer is used[1].tokenizer is not saver._loaded.tokenizer
    assert used[0].model is saver._loaded.model


def test_a_run_whose_disk_fails_behind_it_ends_in_one_line(tmp_path, monkeypatch):
    def write(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "copy_checkpoint", lambda *given: write)
    with pytest.raises(RunError, match="cannot go on writing this run: No space left on device"):
        run_tiny(tmp_path / "run", steps=3, checkpoint={"every": 1, "async_save": True})
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [0], "what was saved before is whole"


def fail(monkeypatch, writer):
    def write(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "BackgroundWriter", writer)
    monkeypatch.setattr(saving, "copy_checkpoint", lambda *given: write)


def test_a_run_whose_disk_has_failed_trains_no_further(tmp_path, monkeypatch):
    fail(monkeypatch, Prompt)
    with pytest.raises(RunError, match="No space left"):
        run_tiny(tmp_path / "run", steps=6, checkpoint={"every": 2, "async_save": True})
    trained = [one["step"] for one in read_metrics(tmp_path / "run" / "metrics.jsonl") if one["stage"] == "train"]
    assert trained == [1, 2], "not until the next checkpoint is due"


def test_a_run_that_is_asked_to_stop_does_not_say_that_it_saved_what_the_disk_refused(tmp_path, monkeypatch):
    fail(monkeypatch, BackgroundWriter)

    class Stop(Callback):
        def on_step_end(self, step, metrics):
            os.kill(os.getpid(), signal.SIGTERM)

    config = tiny_config(steps=6, checkpoint={"every": 5, "async_save": True})
    with pytest.raises(RunError, match="No space left"):
        run_training(config, tmp_path / "run", display=Silent(), callbacks=[Stop()])


def test_what_all_ranks_write_and_adapters_are_written_in_place(make, monkeypatch):
    Held(monkeypatch)
    saver, _, told = make()
    saver._learners.is_sharded = True
    saver.save(1, STATE, keep=(), async_save=True)
    assert [step for step, _ in told] == [1]
    saver._learners.is_sharded = False
    monkeypatch.setattr(saving, "has_lora", lambda model: True)
    saver.save(2, STATE, keep=(), async_save=True)
    assert [step for step, _ in told] == [1, 2]


@pytest.mark.parametrize(
    ("async_save", "device", "free", "copies"),
    [
        (None, "cpu", 1e12, False),
        (None, "meta", 1e12, True),
        (None, "meta", 2 * 72.0, True),
        (None, "meta", 2 * 72.0 - 1, False),
        (True, "cpu", 0.0, True),
        (False, "meta", 1e12, False),
    ],
)
def test_where_a_copy_is_made(make, monkeypatch, async_save, device, free, copies):
    """Six weights of four bytes, two moments of four each: 72 bytes. A device that is no CPU is as good as a GPU."""
    saver, _, _ = make(async_save=async_save)
    saver._loaded = replace(saver._loaded, model=torch.nn.Linear(2, 2, device=device))
    monkeypatch.setattr(saving, "free_memory", lambda: free)
    assert saver._copies() is copies


def test_copies_share_what_was_shared_and_nothing_with_the_run():
    weight = torch.ones(2, 2)
    copied = copy_to_host({"tied": [weight, weight.detach()], "own": (torch.ones(2, 2), 3, "word")})
    weight.zero_()
    first, second = copied["tied"]
    assert first.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert first.data_ptr() == second.data_ptr()
    assert copied["own"][0].data_ptr() != first.data_ptr()
    assert copied["own"][1:] == (3, "word")


def test_a_copy_is_gone_once_it_is_let_go_without_a_garbage_collection():
    """Collections are seldom in a run, and until the next one a copy as large as a checkpoint would stay."""
    gc.collect()
    gc.disable()
    try:
        copied = copy_to_host({"weight": torch.ones(2, 2)})
        assert isinstance(copied, dict)
        held = weakref.ref(copied["weight"])
        del copied
        assert held() is None
    finally:
        gc.enable()


def test_tied_weights_are_written_once(tmp_path):
    run = run_tiny(tmp_path / "run", steps=2, checkpoint={"every": 1, "keep": 9, "async_save": True})
    start, behind = (
        load_file(run.path / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors") for step in (0, 1)
    )
    assert start.keys() == behind.keys()
