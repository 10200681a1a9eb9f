"""The reference policy of the KL term: the trained policy as it was when learning began.

Invariant: only trainable parameters are copied, so for an adapter the reference costs what the adapter costs; the copy
is taken after SFT.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn


class Reference:
    """The trainable parameters of a policy as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._kept = {name: p.detach().clone() for name, p in self._parameters.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it, the policy's module holds the reference weights; the two are swapped, not copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._kept[name] = self._kept[name], parameter.data

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, kept in self._kept.items():
            kept.copy_(state[name])
