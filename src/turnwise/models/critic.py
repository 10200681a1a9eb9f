"""The critic: the return still expected after each token.

Invariant: its backbone is its own, a copy of the policy's at creation (adapters and frozen weights included), so
neither learns through the other; its head begins at zero, so an untrained critic predicts 0.
Shapes: B rows padded to W (or B = 1 and rows end to end), H hidden size.
"""

import copy

import torch
from torch import nn

from turnwise.compute.score import backbone_of, hidden_states, text_config


class Critic(nn.Module):
    """A backbone with a scalar head."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        backbone = backbone_of(policy)
        self.backbone = copy.deepcopy(backbone)
        place = next(backbone.parameters())
        dtype = torch.promote_types(place.dtype, torch.float32)
        width = int(getattr(text_config(backbone), "hidden_size"))  # noqa: B009  # its type does not say so
        self.head = nn.Linear(width, 1, device=place.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The value [B, W] of the state after each token of ids [B, W]; the token at t was sampled in that of t − 1."""
        hidden = hidden_states(self.backbone, ids, positions)  # [B, W, H]
        value: torch.Tensor = self.head(hidden.flatten(0, 1).to(self.head.weight.dtype))  # [B·W, 1]
        # Neither the head nor the critic returns a view, which a sharded module must not.
        return value.reshape(*hidden.shape[:2], 1).sum(-1)  # [B, W]
