"""What a run removes or closes when it is done with it, and what it leaves to its caller."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

import pytest

from tiny_runs import Signals, tiny_config
from turnwise.envs.host import Host
from turnwise.errors import ConfigError
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
    if error is None:
        asyncio.run(trainer.run())
    else:
        with pytest.raises(ConfigError, match="a mistake"):
            asyncio.run(trainer.run())
    trainer._run.assert_awaited_once()
    trainer.rollouts.close.assert_awaited_once()


@pytest.mark.parametrize(("step", "removed"), [(0, 1), (1, 0), (2, 0)])
def test_checkpoints_of_the_cold_start_are_removed_when_training_has_its_first(step, removed):
    trainer = Trainer.__new__(Trainer)
    for name in ("rollouts", "recorder", "controller", "config", "learners", "ledger", "checkpoints", "decision"):
        setattr(trainer, name, MagicMock())
    trainer.rollouts.waiting = 0
    trainer.cold_start = MagicMock()
    trainer._save(step)
    assert trainer.cold_start.remove_checkpoints.call_count == removed
    assert trainer.saved == step
    trainer.cold_start = None
    trainer._save(step)
