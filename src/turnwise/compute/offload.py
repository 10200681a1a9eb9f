"""Activation offload: what the backward pass needs of the forward pass waits for it in the host's memory.

Invariant: a tensor comes back with the bits it left with, so no gradient changes. Weights are never moved: they stay on
the device anyway, or are gathered again by the layers that need them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

_LEAST_BYTES = 2**20
"""Smaller tensors stay: a copy of them takes longer to launch than to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offloaded:
    """A tensor in the host's memory, and the device it belongs to."""

    tensor: torch.Tensor
    device: torch.device


Saved: TypeAlias = torch.Tensor | _Offloaded


@contextmanager
def activation_offload(moved: Callable[[int], None] = lambda size: None) -> Iterator[None]:
    """Within it, large activations that a forward pass saves are copied to the host, and back when they are needed.

    With activation checkpointing these are the inputs of layers, without it all that layers save. `moved` is called
    with the bytes of each. Copies are queued behind the work of the device, to and from pinned memory: no pass waits.
    """

    def pack(tensor: torch.Tensor) -> Saved:
        size = tensor.numel() * tensor.element_size()
        if size < _LEAST_BYTES or _is_weight(tensor):
            return tensor
        moved(size)
        pinned = tensor.device.type == "cuda"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        host.copy_(tensor, non_blocking=pinned)
        return _Offloaded(tensor=host, device=tensor.device)

    def unpack(saved: Saved) -> torch.Tensor:
        return saved.tensor.to(saved.device, non_blocking=True) if isinstance(saved, _Offloaded) else saved

    with saved_tensors_hooks(pack, unpack):
        yield


def _is_weight(tensor: torch.Tensor) -> bool:
    """A parameter, or the transpose that a product saves of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
