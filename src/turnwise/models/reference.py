"""The reference policy of the KL term: the trained policy as it was when learning began.

Invariant: only trainable parameters are copied, so for an adapter the reference costs what the adapter costs; the copy
is taken after SFT.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import nn

Place: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _as_it_is(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tensor


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Reference:
    """The trainable parameters of a policy as they were."""

    def __init__(self, model: nn.Module, local: Callable[[torch.Tensor], torch.Tensor] = _whole) -> None:
        """`local` is this process's part of a tensor, in the same memory."""
        self._local = local
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it, the policy's module holds the reference weights, and its own are kept here.

        Memory that runs out leaves both as they were: all that the exchange needs is taken before it begins.
        """
        room = self._make_room()
        self._swap(room)
        try:
            yield
        finally:
            self._swap(room)

    @torch.no_grad()
    def _make_room(self) -> dict[torch.dtype, torch.Tensor]:
        """By dtype, for the largest of the parameters' parts in this process."""
        parts = [self._local(parameter) for parameter in self._parameters.values()]
        sizes: dict[torch.dtype, int] = {}
        for part in parts:
            sizes[part.dtype] = max(part.numel(), sizes.get(part.dtype, 0))
        return {dtype: torch.empty(size, dtype=dtype, device=parts[0].device) for dtype, size in sizes.items()}

    @torch.no_grad()
    def _swap(self, room: Mapping[torch.dtype, torch.Tensor]) -> None:
        """Values change places, one tensor at a time, not tensors: a sharded module holds on to its own."""
        for name, parameter in self._parameters.items():
            own, kept = self._local(parameter), self._local(self._kept[name])
            aside = room[own.dtype][: own.numel()].view_as(own)
            aside.copy_(own)
            own.copy_(kept)
            kept.copy_(aside)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, torch.Tensor], place: Place = _as_it_is) -> None:
        """Takes weights known in full; `place(weight, like)` is the part of one that this process keeps."""
        for name, kept in self._kept.items():
            kept.copy_(place(state[name], kept))
