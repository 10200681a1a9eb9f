"""Trajectories are written behind the run, and still nothing stands for them before they are on the disk."""

import time

import pytest

from tiny_runs import SFT, Silent, run_tiny, tiny_config
from turnwise.errors import RunError
from turnwise.runs import RunDirectory, read_trajectories
from turnwise.training import recorder as recorder_module
from turnwise.training.callbacks import Callback
from turnwise.training.trainer import run_training


class Slow:
    """Writes take a while, as on a busy disk; every file is noted when it is there."""

    def __init__(self, monkeypatch, fail_on=None):
        prepare = recorder_module.prepare_trajectories
        self.written = []

        def prepared(path, *arguments):
            write = prepare(path, *arguments)

            def run():
                time.sleep(0.05)
                if path.name == fail_on:
                    raise OSError(28, "No space left on device")
                write()
                self.written.append(path.name)

            return run

        monkeypatch.setattr(recorder_module, "prepare_trajectories", prepared)


class Watch(Callback):
    def __init__(self):
        self.at_checkpoint = {}

    def on_run_begin(self, config, directory):
        self.folder = directory

    def on_checkpoint(self, step, path):
        self.at_checkpoint[step] = sorted(file.name for file in self.folder.trajectories.glob("*.parquet"))


def test_a_checkpoint_comes_after_the_trajectories_it_stands_for(tmp_path, monkeypatch):
    slow, watch = Slow(monkeypatch), Watch()
    config = tiny_config(sft=SFT, steps=2)
    run = run_training(config, tmp_path / "run", display=Silent(), callbacks=[watch])
    assert watch.at_checkpoint[0] == ["evaluate-000000.parquet", "sft-000000.parquet"]
    assert {"train-000001.parquet", "train-000002.parquet"} <= set(watch.at_checkpoint[2])
    assert slow.written == [name for name in slow.written if (run.trajectories / name).is_file()]
    for file in run.trajectories.glob("*.parquet"):
        assert read_trajectories(file)


def test_a_disk_that_is_full_ends_the_run_before_its_next_checkpoint(tmp_path, monkeypatch):
    Slow(monkeypatch, fail_on="train-000001.parquet")
    with pytest.raises(RunError, match=r"^[^\n]*No space left on device; what was saved is whole[^\n]*$"):
        run_tiny(tmp_path / "run", steps=2)
    run = RunDirectory.open(tmp_path / "run")
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-000000"]
