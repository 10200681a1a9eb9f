"""What a run sets up before it trains, removes or closes when it is done with it, and leaves to its caller."""

import asyncio
import errno
import gc
import os
import random
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest
import torch

from tiny_runs import Signals, Silent, tiny_config
from turnwise.envs.host import Host
from turnwise.errors import ConfigError, RunError
from turnwise.training import trainer as module
from turnwise.training.trainer import Trainer, run_training


class Placed(Signals):
    """An environment that runs elsewhere, in so many processes."""

    def __init__(self, workers):
        self._host = Recorded(workers)

    @property
    def host(self):
        return self._host


class Recorded(Host):
    def __init__(self, workers):
        self._workers, self.closed = workers, 0

    @property
    def workers(self):
        return self._workers

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(("workers", "closed"), [(0, 1), (2, 0)])
def test_processes_of_an_environment_are_ended_unless_the_caller_began_them(workers, closed, tmp_path, monkeypatch):
    def fail(*given):
        raise ConfigError("no such model")

    monkeypatch.setattr(module, "_load_model", fail)
    env = Placed(workers)
    with pytest.raises(ConfigError, match="no such model"):
        run_training(tiny_config(), tmp_path / "run", env=env)
    assert env.host.closed == closed


@pytest.mark.parametrize("error", [None, ConfigError("a mistake")])
def test_what_still_plays_is_ended_however_a_run_ends(error):
    trainer = Trainer.__new__(Trainer)
    trainer.rollouts, trainer._run = AsyncMock(), AsyncMock(side_effect=error)
    trainer.saver = MagicMock()
    trainer.saver.__exit__.return_value = None
    if error is None:
        asyncio.run(trainer.run())
    else:
        with pytest.raises(ConfigError, match="a mistake"):
            asyncio.run(trainer.run())
    trainer._run.assert_awaited_once()
    trainer.rollouts.close.assert_awaited_once()
    trainer.saver.__exit__.assert_called_once()


@pytest.mark.parametrize(("step", "removed"), [(0, 1), (1, 0), (2, 0)])
def test_checkpoints_of_the_cold_start_are_removed_when_training_has_its_first(step, removed):
    trainer = Trainer.__new__(Trainer)
    for name in ("rollouts", "recorder", "controller", "config", "learners", "ledger", "checkpoints", "decision"):
        setattr(trainer, name, MagicMock())
    trainer.rollouts.waiting = 0
    trainer.cold_start, trainer.config.steps = MagicMock(), 2
    trainer.saver = MagicMock()
    trainer.saver.save.side_effect = lambda step, state, **how: trainer._record_saved(step, Path(f"step-{step}"))
    trainer._save(step)
    assert trainer.cold_start.remove_checkpoints.call_count == removed
    assert trainer.saved == step
    trainer.cold_start = None
    trainer._save(step)


def run_instead(work, monkeypatch, folder, **given):
    """A run that is all set up, and does `work` where it would train."""

    class Instead:
        def __init__(self, *parts):
            pass

        async def run(self):
            work()

    monkeypatch.setattr(module, "Trainer", Instead)
    return run_training(tiny_config(), folder, **given)


def test_a_disk_that_is_full_ends_a_run_in_one_line(tmp_path, monkeypatch):
    def fill_the_disk():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunError, match=r"^[^\n]*run: cannot go on writing this run: [^\n]*--resume$"):
        run_instead(fill_the_disk, monkeypatch, tmp_path / "run", display=Silent())


def test_a_run_is_shown_where_it_is_asked_to_be_and_else_on_the_screen(tmp_path, monkeypatch):
    entered = []

    class Shown(Silent):
        def __enter__(self):
            entered.append(self)
            return super().__enter__()

    asked, screen = Shown(), Shown()
    monkeypatch.setattr(module, "make_display", lambda: screen)
    run_instead(lambda: None, monkeypatch, tmp_path / "asked", display=asked)
    run_instead(lambda: None, monkeypatch, tmp_path / "plain")
    assert entered == [asked, screen]


def test_what_others_draw_follows_from_the_seed_and_their_garbage_is_seldom_collected(tmp_path, monkeypatch):
    """Environments of users draw from the process's own generators."""
    drawn, before = [], gc.get_threshold()

    def draw():
        drawn.append((random.random(), torch.rand(()).item()))
        assert gc.get_threshold()[0] > before[0]

    for name, chance in (("one", 5), ("other", 6)):
        random.seed(chance)
        torch.manual_seed(chance)
        run_instead(draw, monkeypatch, tmp_path / name, display=Silent())
    assert drawn[0] == drawn[1]
    assert gc.get_threshold() == before


@pytest.mark.parametrize("staleness", [0, 1])
def test_only_updates_in_the_event_loops_own_thread_are_charged_to_its_ledger(staleness):
    learners, parts = MagicMock(), SimpleNamespace(loaded="model", autocast=None, ledger="ledger")
    module._load_model(learners, tiny_config(rollout={"staleness": staleness}), parts)
    assert learners.load_model.call_args.kwargs["ledger"] == (None if staleness else "ledger")
