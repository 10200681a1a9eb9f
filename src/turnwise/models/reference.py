"""The policy at the start, to which the KL term holds the one that learns.

Invariant: only what can be trained is kept twice, so for an adapter the reference costs what the adapter costs;
and a cold start is part of the reference, since the copy is taken when learning begins.
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
        """Within it, the policy's module *is* the reference; nothing is copied, the two only change places."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._kept[name] = self._kept[name], parameter.data

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, kept in self._kept.items():
            kept.copy_(state[name])
