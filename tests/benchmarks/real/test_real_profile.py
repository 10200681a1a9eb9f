"""Steps that are sampled: what they took is charged to the account and to the functions that took it."""

import asyncio
import gc
import signal
import time

import pytest

from benchmarks.real.profile import Samples, main
from turnwise.ledger import Ledger
from turnwise.training.trainer import Trainer

if not hasattr(signal, "SIGALRM"):
    pytest.skip("there is no such signal", allow_module_level=True)


def busy(seconds):
    """By the thread's own clock: on a loaded machine the other one may pass while nothing runs, samples included."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_time_goes_to_the_open_account_and_to_its_stack():
    ledger, samples = Ledger(), Samples()
    with samples.taken(ledger):
        with ledger.spend("environment"):
            busy(0.2)
        with ledger.spend("decode"):
            while samples.wall["decode"] < 0.15:
                time.sleep(0.01)
        gc.collect(0)
    assert samples.wall["environment"] > 0.1
    assert samples.cpu["decode"] < 0.05, "it slept"
    name = "benchmarks/real/test_real_profile.py:busy"
    assert samples.own["environment", name] > 0.1
    here = name.replace(":busy", ":test_time_goes_to_the_open_account_and_to_its_stack")
    assert samples.cumulative["environment", here] > 0.1
    assert samples.collections["generation 0"] >= 1
    before = dict(samples.wall)
    busy(0.05)
    assert samples.wall == before, "nothing is sampled afterwards"


def test_the_steps_that_were_asked_for_are_written(tmp_path, monkeypatch):
    played, took = [], []

    async def train(self, step):
        played.append(step + 1)
        began = time.perf_counter()
        with self.ledger.spend("update"):
            busy(0.02)
        took.append(time.perf_counter() - began)

    monkeypatch.setattr(Trainer, "_train", train)

    def command(arguments):
        trainer = Trainer.__new__(Trainer)
        trainer.ledger = Ledger()
        for step in range(int(arguments[1])):
            asyncio.run(trainer._train(step))
        return 3

    monkeypatch.setattr("benchmarks.real.profile.turnwise", command)
    assert main([str(tmp_path / "figures.txt"), "--steps", "2:3", "--", "train", "5"]) == 3
    assert played == [1, 2, 3, 4, 5]
    account = next(line for line in (tmp_path / "figures.txt").read_text().splitlines() if line.endswith("  update"))
    assert 10 < float(account.split()[0]) < 20 + 1000 * sum(took[1:3]) / 2, "milliseconds of each of two steps"
    assert Trainer._train is train
