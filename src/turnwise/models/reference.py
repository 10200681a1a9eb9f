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


class Reference:
    """The trainable parameters of a policy as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it, the policy's module holds the reference weights, and its own are kept here."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Values change places, one tensor at a time, not tensors: a sharded module holds on to its own."""
        for name, parameter in self._parameters.items():
            own = parameter.detach().clone()
            parameter.copy_(self._kept[name])
            self._kept[name].copy_(own)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, torch.Tensor], place: Place = _as_it_is) -> None:
        """Takes weights known in full; `place(weight, like)` is the part of one that this process keeps."""
        for name, kept in self._kept.items():
            kept.copy_(place(state[name], kept))
