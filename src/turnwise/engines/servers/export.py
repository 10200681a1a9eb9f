"""Weights as a folder that servers read: `config.json` and one file of safetensors.

Invariant: every weight that a checkpoint names is written, a tied head under its own name as well.
"""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from turnwise.engines.vllm.arguments import WEIGHTS_FILE, write_config
from turnwise.engines.weights import checkpoint_weights

_SHARED_MEMORY = Path("/dev/shm")


def make_weights_folder(asked: str | None) -> Path:
    """A new folder of this run's, in the one asked for or else in this machine's memory, where it has such a folder."""
    if asked is not None:
        Path(asked).expanduser().mkdir(parents=True, exist_ok=True)
    parent = Path(asked).expanduser() if asked else _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="turnwise-weights-", dir=parent))


def write_weights(model: PreTrainedModel, folder: Path, *, dtype: torch.dtype) -> None:
    """Writes the model as it is now, in the type in which it is going to sample."""
    write_config(model, folder)
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, weight in checkpoint_weights(model).items():
        copied = weight.detach().to(device="cpu", dtype=dtype if weight.is_floating_point() else None).contiguous()
        if copied.data_ptr() in seen:  # safetensors refuses tensors that share memory
            copied = copied.clone()
        seen.add(copied.data_ptr())
        tensors[name] = copied
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
