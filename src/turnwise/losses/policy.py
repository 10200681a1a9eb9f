"""PPO's clipped surrogate, with separate bounds below and above, and the dual clip.

    ρ = exp(log π − log π_old)
    loss = max(−A ρ, −A clip(ρ, 1 − low, 1 + high));        where A < 0: at most −A · dual_clip

Sources: Schulman et al., arXiv 1707.06347; bounds that differ: Yu et al. (DAPO), arXiv 2503.14476; dual clip: Ye et
al., arXiv 1912.09729. Departure: log ρ is held within ±20, so that A = 0 never meets an infinite ratio (0 · ∞).
Shapes: M trained tokens.
"""

from dataclasses import dataclass

import torch

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss per token, and where a bound changed it: stopped its gradient, or in `cispo` held its weight."""

    loss: torch.Tensor
    """[M]"""
    clipped: torch.Tensor
    """[M] bool"""


def policy_loss(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> PolicyLoss:
    """Per token [M]; weigh with `token_weights` and sum."""
    ratio = bounded_exp(logprob - old_logprob)  # [M]
    return clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """A probability ratio [M] that is finite whatever its logarithm."""
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def clipped_surrogate(
    ratio: torch.Tensor, advantage: torch.Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> PolicyLoss:
    """The surrogate for these ratios [M], each a token's own or its segment's."""
    free = -advantage * ratio  # [M]
    bounded = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)  # [M]
    clipped = bounded > free  # [M]
    loss = torch.where(clipped, bounded, free)  # [M]
    if dual_clip is not None:
        ceiling = advantage.abs() * dual_clip  # [M]: the loss of a good action is below zero
        over = loss > ceiling  # [M]
        loss = torch.where(over, ceiling, loss)
        clipped = clipped | over
    return PolicyLoss(loss=loss, clipped=clipped)
