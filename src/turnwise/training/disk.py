"""The room that a run's checkpoints take, told before the run has spent anything: a full disk would end it later.

Invariant: checkpoints of a run never take more than `checkpoint_bytes`, but for the states of generators, sampler and
monitor, and for the checkpoint that a resumed run began from.
"""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.resources import check_disk
from turnwise.config import Config
from turnwise.runs.files import describe_disk_error
from turnwise.training.sft import count_sft_steps

_QUOTA_PROBE = 2**26
"""Bytes that are reserved and released again, to meet a quota that the file system does not tell of."""


def checkpoint_bytes(config: Config, model: torch.nn.Module) -> float:
    """The most bytes that checkpoints take at once: 50 billion for 1.8 billion parameters in float32, saved twice.

    Beside those that are kept stand that of the start of training, one that is being written and, under `auto`, one to
    roll back to and the next one, of which it is not yet known that the run stayed healthy.
    """
    saves = -(-config.steps // (config.checkpoint.every or max(1, config.steps)))
    held = min(saves, config.checkpoint.keep + 1 + 2 * (config.stability.mode == "auto"))
    return max(_start_bytes(config, model) + held * one_checkpoint_bytes(config, model), _sft_bytes(config, model))


def one_checkpoint_bytes(config: Config, model: torch.nn.Module) -> float:
    """Of a checkpoint of training: weights and, once there was an update, two moments; a critic's; a reference."""
    weights, masters, moments, reference = _parts(config, model)
    models = 2 if config.credit.needs_critic or config.stability.mode in ("auto", "always") else 1
    return models * (weights + masters + moments) + reference


def _start_bytes(config: Config, model: torch.nn.Module) -> float:
    """Of the checkpoint before the first update, which has no moments."""
    weights, masters, _, reference = _parts(config, model)
    models = 2 if config.credit.needs_critic or config.stability.mode == "always" else 1
    return models * (weights + masters) + reference


def _sft_bytes(config: Config, model: torch.nn.Module) -> float:
    """Of the checkpoints of the cold start, which are gone once training has one: they stand beside it until then."""
    if config.sft is None:
        return 0.0
    weights, masters, moments, _ = _parts(config, model)
    kept = config.checkpoint.keep if config.checkpoint.sft_every or config.checkpoint.sft_minutes else 0
    written = kept + 1
    if config.sft.chats is None:
        kept, written = (min(n, count_sft_steps(config.sft.demonstrations, config.sft)) for n in (kept, written))
    one = weights + masters + moments
    return max(written * one, kept * one + _start_bytes(config, model))


def _parts(config: Config, model: torch.nn.Module) -> tuple[float, float, float, float]:
    """The bytes of weights, of the float32 masters of those in half precision, of moments, and of a reference."""
    weights = sum(float(p.numel() * p.element_size()) for p in model.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    masters = sum(4.0 * p.numel() for p in trained if p.element_size() < 4)
    moments = sum(8.0 * p.numel() for p in trained)
    reference = sum(float(p.numel() * p.element_size()) for p in trained) if config.loss.kl_coef > 0 else 0.0
    return weights, masters, moments, reference


def warn_of_disk(config: Config, model: torch.nn.Module, folder: Path) -> list[Diagnosis]:
    """A sign, where the checkpoints of a run that begins may not fit its disk."""
    found = check_disk(needed=checkpoint_bytes(config, model), free=free_bytes(folder), path=str(folder))
    return [replace(diagnosis, severity="sign") for diagnosis in found]


def free_bytes(folder: Path) -> float:
    """What may be written below a folder: free for this user, or less where a quota or a limit of files is met."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = float(shutil.disk_usage(there).free)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, int(max(1, min(free, _QUOTA_PROBE))))
    except OSError as error:
        if describe_disk_error(error):
            return 0.0
    return free
