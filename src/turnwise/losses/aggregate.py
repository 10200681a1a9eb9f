"""How much each trained token weighs in the loss of a mini-batch.

Invariant: weights are computed once over a whole mini-batch and sum to one; the loss is Σ weight · loss, so any
split into micro-batches accumulates to the same gradient, and a trajectory that fills many rows counts once.
Shapes: M trained tokens, T trajectories among them.
"""

from typing import Literal, TypeAlias

import torch

Aggregation: TypeAlias = Literal["token", "trajectory"]


def token_weights(trajectory: torch.Tensor, mode: Aggregation) -> torch.Tensor:
    """Trajectories [M] 0, 0, 0, 7 weigh ¼ each by "token", and 1/6, 1/6, 1/6, ½ by "trajectory"."""
    if mode == "token":
        return torch.full(trajectory.shape, 1 / max(len(trajectory), 1), device=trajectory.device)  # [M]
    _, owner, tokens = torch.unique(trajectory, return_inverse=True, return_counts=True)  # [M], [T]
    weights: torch.Tensor = (tokens[owner].to(torch.get_default_dtype()) * len(tokens)).reciprocal()  # [M]
    return weights
