"""How much room a run's checkpoints take, by hand and by what a run wrote; and what it tells where they may not fit."""

import pytest
import torch

from tiny_runs import run_tiny, tiny_config
from turnwise.config import Config
from turnwise.runs import checkpoints as runs_checkpoints
from turnwise.runs.findings import read_findings
from turnwise.runs.manifest import write_manifest
from turnwise.training import disk, trainer
from turnwise.training.disk import checkpoint_bytes, warn_of_disk

FREE = 10
"""Bytes, in place of a disk."""


def make_config(**settings) -> Config:
    return Config.model_validate({"env": {"name": "bandit"}, **settings})


def make_model(*, frozen: bool = False) -> torch.nn.Module:
    """A thousand weights of four bytes; their moments take eight each."""
    model = torch.nn.Linear(100, 10, bias=False)
    return model.requires_grad_(not frozen)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The start has weights alone, 4 kB; a later one has 12 kB.
        ({"steps": 0}, 4),
        ({"steps": 10, "checkpoint": {"every": 10}}, 4 + 12),
        ({"steps": 11, "checkpoint": {"every": 10, "keep": 2}}, 4 + 2 * 12),
        ({"steps": 11, "checkpoint": {"every": 0, "keep": 2}}, 4 + 12),
        ({"steps": 0, "checkpoint": {"every": 0}}, 4),
        ({"steps": 100, "checkpoint": {"every": 10, "keep": 1}}, 4 + 2 * 12),
        ({"steps": 100, "checkpoint": {"every": 10, "keep": 3}}, 4 + 4 * 12),
        ({"steps": 0, "sft": {"demonstrations": 8}}, 12 + 4),
        ({"steps": 0, "sft": {"demonstrations": 1000}}, 3 * 12),
        ({"steps": 0, "sft": {"chats": "chats.jsonl"}, "checkpoint": {"keep": 1}}, 2 * 12),
        ({"steps": 0, "sft": {"demonstrations": 1000}, "checkpoint": {"sft_minutes": 0}}, 12),
        ({"steps": 100, "sft": {"demonstrations": 8}, "checkpoint": {"keep": 1}}, 4 + 2 * 12),
        ({"steps": 100, "credit": {"estimator": "gae"}, "checkpoint": {"keep": 1}}, 8 + 2 * 24),
        ({"steps": 100, "loss": {"kl_coef": 0.1}, "checkpoint": {"keep": 1}}, 4 + 4 + 2 * 16),
        ({"steps": 100, "stability": {"mode": "always"}, "checkpoint": {"keep": 1}}, 8 + 2 * 24),
        ({"steps": 100, "stability": {"mode": "auto"}, "checkpoint": {"keep": 1}}, 4 + 4 * 24),
    ],
)
def test_checkpoints_take_so_many_kilobytes(settings, expected):
    assert checkpoint_bytes(make_config(**settings), make_model()) == expected * 1000


def test_frozen_weights_have_no_moments():
    config = make_config(steps=100, checkpoint={"keep": 1})
    assert checkpoint_bytes(config, make_model(frozen=True)) == 3 * 4000


def test_weights_in_half_precision_have_masters():
    config = make_config(steps=100, checkpoint={"keep": 1})
    assert checkpoint_bytes(config, make_model().to(torch.bfloat16)) == (2 + 4) * 1000 + 2 * (2 + 4 + 8) * 1000


MONITORED = {"mode": "auto", "monitor": {"calibration_steps": 2}}


@pytest.mark.parametrize(
    ("settings", "checkpoints"),
    [
        ({"steps": 2, "checkpoint": {"every": 2, "keep": 1}, "credit": {"estimator": "gae"}}, 2),
        ({"steps": 3, "checkpoint": {"every": 1, "keep": 1}, "loss": {"kl_coef": 0.1}}, 3),
        ({"steps": 4, "checkpoint": {"every": 1, "keep": 2}, "model": {"dtype": "bfloat16"}}, 4),
        (
            {
                "steps": 12,
                "checkpoint": {"every": 1, "keep": 1},
                "credit": {"estimator": "gae"},
                "stability": MONITORED,
            },
            5,
        ),
        ({"steps": 0, "sft": {"demonstrations": 64}, "checkpoint": {"keep": 2, "sft_every": 1}}, 3),
        ({"steps": 0, "sft": {"demonstrations": 8, "batch": 4}, "checkpoint": {"keep": 2, "sft_every": 1}}, 3),
    ],
    ids=["critic", "reference", "half", "auto", "sft", "short sft"],
)
def test_no_run_takes_more_at_once_than_was_told(tmp_path, monkeypatch, settings, checkpoints):
    """Measured as each checkpoint is written: a critic's first weights, masters, and one that `auto` may go back to."""
    told, taken = [], []

    def measure(folder, step, known):
        files = [file for file in folder.parents[1].rglob("*") if file.suffix in (".safetensors", ".pt")]
        taken.append(sum(file.stat().st_size for file in files))
        write_manifest(folder, step, known=known)

    monkeypatch.setattr(runs_checkpoints, "write_manifest", measure)
    monkeypatch.setattr(trainer, "warn_of_disk", lambda *given: told.append(checkpoint_bytes(*given[:2])) or [])
    run_tiny(tmp_path / "run", **settings)
    assert told[0] < max(taken) < told[0] + checkpoints * 40_000, "and in each the states of generators and others"


def test_a_run_takes_as_much_as_was_told(tmp_path):
    settings = {"steps": 3, "checkpoint": {"every": 1, "keep": 2}}
    run = run_tiny(tmp_path / "run", **settings)
    files = [file for file in (run.path / "checkpoints").rglob("*") if file.suffix in (".safetensors", ".pt")]
    held = sum(file.stat().st_size for file in files)
    (start,) = [file for file in files if file.suffix == ".safetensors" and "step-000000" in str(file)]
    told = checkpoint_bytes(tiny_config(**settings), torch.nn.Linear(start.stat().st_size // 4, 1, bias=False))
    # The start and two of the three that may stand at once: one of them only while it is written.
    shown = told * (1 + 2 * 3) / (1 + 3 * 3)
    assert shown < held < shown + 3 * 30_000, "and in each the states of generators, sampler and monitor"


def test_a_disk_that_is_too_small_is_told_before_anything_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_bytes", lambda folder: FREE)
    run = run_tiny(tmp_path / "run", steps=1)
    (found,) = [one for one in read_findings(run.path / "findings.jsonl") if one["kind"] == "disk_short"]
    assert (found["step"], found["severity"]) == (0, "sign"), "the run goes on: it may fit after all"
    assert found["advice"] == "free some, choose another --run, or lower checkpoint.keep and trajectories.max_gigabytes"
    assert found["evidence"]["GiB free"] == FREE / 2**30


def test_a_disk_with_room_is_no_finding(tmp_path, monkeypatch):
    config, model = make_config(steps=100, checkpoint={"keep": 1}), make_model()
    needed = checkpoint_bytes(config, model)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: needed)
    assert warn_of_disk(config, model, tmp_path) == []
    monkeypatch.setattr(disk, "free_bytes", lambda folder: needed - 1)
    assert [one.kind for one in warn_of_disk(config, model, tmp_path)] == ["disk_short"]
