"""CISPO: the ratio becomes a weight with a bound, so that no token ever loses its gradient.

    ρ = exp(log π − log π_old)
    loss = −sg[min(ρ, 1 + high)] · A · log π            sg: no gradient flows through it

Source: MiniMax-M1, arXiv 2506.13585, whose experiments set no lower bound either. Where ρ = 1 the gradient is PPO's.
Departure: log ρ is held within ±20. Shapes: M trained tokens.
"""

import torch

from turnwise.losses.policy import PolicyLoss, bounded_exp


def cispo_loss(
    logprob: torch.Tensor, old_logprob: torch.Tensor, advantage: torch.Tensor, *, clip_high: float
) -> PolicyLoss:
    """Per token [M]; weigh with `token_weights` and sum."""
    ratio = bounded_exp(logprob.detach() - old_logprob)  # [M]
    weight = ratio.clamp(max=1 + clip_high)  # [M]
    return PolicyLoss(loss=-weight * advantage * logprob, clipped=ratio > 1 + clip_high)
