"""Weights on their way to other processes: plain arrays that an object store shares without a copy.

Invariant: `unpack(pack(weights))` has the same bits and dtypes; tensors that share memory are packed once.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor's bytes: numpy has no bfloat16."""

    data: NDArray[np.uint8]
    dtype: torch.dtype
    shape: tuple[int, ...]


PackedWeights: TypeAlias = dict[str, PackedTensor]


def pack(weights: Mapping[str, torch.Tensor]) -> PackedWeights:
    """Weights as bytes on the CPU; those that are there already are not copied."""
    packed: dict[tuple[int, torch.dtype, torch.Size], PackedTensor] = {}

    def one(tensor: torch.Tensor) -> PackedTensor:
        tensor = tensor.detach()
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape)
        if key not in packed:
            flat = tensor.cpu().contiguous().flatten()
            packed[key] = PackedTensor(flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))
        return packed[key]

    return {name: one(tensor) for name, tensor in weights.items()}


def unpack(packed: PackedWeights) -> dict[str, torch.Tensor]:
    """The tensors, to be read only: their memory may be other processes' too."""
    return {name: _tensor(one) for name, one in packed.items()}


def _tensor(packed: PackedTensor) -> torch.Tensor:
    if not packed.data.size:
        return torch.empty(packed.shape, dtype=packed.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # nor is it written to
        return torch.frombuffer(packed.data, dtype=packed.dtype).view(packed.shape)
