"""How much each trained token weighs in the loss of a mini-batch.

Invariant: weights are computed once over a whole mini-batch; the loss is Σ weight · loss, so any split into
micro-batches accumulates to the same gradient, and a trajectory that fills many rows counts once.

    token        1 / M                    every token alike                 (DAPO, arXiv 2503.14476)
    trajectory   1 / (T · its tokens)     every trajectory alike            (GRPO, arXiv 2402.03300)
    fixed        1 / (T · fixed_length)   no length in the weight at all    (Dr. GRPO, arXiv 2503.20783)

The first two sum to one. `fixed` does not: a token weighs the same whatever else was sampled, so that the loss is an
unbiased estimate of a sum over tokens. Shapes: M trained tokens, T trajectories among them.
"""

import torch

from turnwise.errors import ConfigError
from turnwise.losses.settings import Aggregation


def token_weights(trajectory: torch.Tensor, mode: Aggregation, *, fixed_length: int | None = None) -> torch.Tensor:
    """Trajectories [M] 0, 0, 0, 7 weigh ¼ each by "token", 1/6, 1/6, 1/6, ½ by "trajectory", 1/8 by "fixed" to 4."""
    if mode == "token":
        return torch.full(trajectory.shape, 1 / max(len(trajectory), 1), device=trajectory.device)  # [M]
    _, owner, tokens = torch.unique(trajectory, return_inverse=True, return_counts=True)  # [M], [T]
    if mode == "fixed":
        if fixed_length is None:
            raise ConfigError("loss.aggregation: fixed divides by a length that is not given: set loss.fixed_length")
        return torch.full(trajectory.shape, 1 / max(len(tokens) * fixed_length, 1), device=trajectory.device)  # [M]
    weights: torch.Tensor = (tokens[owner].to(torch.get_default_dtype()) * len(tokens)).reciprocal()  # [M]
    return weights
