"""Tensors in shards: each process writes its part of every tensor, and any number of processes reads them again.

Written by torch.distributed.checkpoint as safetensors: no shard is a pickle, and none is ever whole in one process.
Invariant: what `read_shards` fills has the bits that `write_shards` was given, however many processes wrote and read.
"""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from turnwise.errors import RunError

SHARDS = "shards"
"""The folder of a checkpoint that holds them, beside `model/`."""
WEIGHTS = "weights"
"""Under this name, the policy's weights: `weights/model.embed_tokens.weight`."""
_FILE_BYTES = 2 * 10**9
"""About the size of a file: a process holds two copies of one while it writes."""


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], *, rank: int, world: int) -> dict[str, str]:
    """Writes this rank's part of each tensor; every rank calls it. The SHA-256 of the files this rank wrote, by name.

    A tensor that every rank has in full is written once.
    """
    own = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=_files(own, world), save_distributed=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a process without others writes all by itself
            save(dict(own), storage_writer=writer, no_dist=world == 1)
    except CheckpointException as error:  # raised on every rank, for the failures of all
        raise next(iter(error.failures.values()))[0] from error
    digests = {}
    for file in sorted(folder.glob(f"shard-{rank + 1:05d}-*.safetensors")):
        with file.open("rb") as handle:
            digests[file.name] = hashlib.file_digest(handle, "sha256").hexdigest()
    return digests


def read_shards(folder: Path, tensors: Mapping[str, torch.Tensor], *, alone: bool) -> None:
    """Fills these tensors, each whole or this rank's part of one; all ranks call it, or one `alone`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a process without others reads all by itself
            load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
    except (CheckpointException, SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise RunError(f"{folder}: shards of another model, or broken ones ({reason[0]}): name another one") from error


def shards_beside(model_folder: Path) -> Path | None:
    """The shards that hold the weights of a checkpoint's `model/`; None where they are in that folder itself."""
    shards = model_folder.parent / SHARDS
    inside = any(model_folder.glob("*.safetensors")) or any(model_folder.glob("*.bin"))
    return shards if shards.is_dir() and not inside else None


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """What of a module is written: each tensor by its first name, though tied weights have two."""
    first_name: dict[int, str] = {}
    kept: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
    for name, tensor in kept.items():
        first_name.setdefault(id(tensor), name)
    return {f"{WEIGHTS}/{name}": kept[name].detach() for name in first_name.values()}


def load_sharded_weights(model: nn.Module, shards: Path) -> None:
    """Loads the policy's weights into a whole model, in place; other processes take no part in it."""
    own = weights_of(model)
    read = {name: torch.empty_like(tensor, device="cpu") for name, tensor in own.items()}
    read_shards(shards, read, alone=True)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(read[name])


def _files(tensors: Mapping[str, torch.Tensor], world: int) -> dict[str, int]:
    """The file of a rank's part of each tensor, numbered from 1."""
    files: dict[str, int] = {}
    number, size = 1, 0
    for name, tensor in tensors.items():
        share = tensor.numel() * tensor.element_size() // world
        if size and size + share > _FILE_BYTES:
            number, size = number + 1, 0
        files[name] = number
        size += share
    return files
