"""Masked importance sampling: a token whose sampler and learner disagree too much is left out, in place of capped.

    r = π_learner / π_sampler
    w = r  where low ≤ r ≤ high,  else 0            the policy loss of a token is multiplied by w

With low = 0 it is masked importance sampling (MIS): where r is above the cap, the token says more about the mismatch
than about the policy, and truncation (`tis.py`) would still learn from it. With a band on both sides it is IcePop: a
token that the sampler favoured far more than the learner does is noise, too.
Claim: over the sampler's draws, the mean of w · f is the learner's mean of f over the tokens that are kept; so the
estimate differs from the policy gradient by exactly the part of what is masked, and by nothing where nothing is.
Sources: Ling Team, "Small Leak Can Sink a Great Ship: Boost RL Training on MoE with IcePop" (2025), band [.5, 5];
Liu et al., "When Speed Kills Stability" (2025), masks above a cap.
Departures: per token, not per sequence; w has no gradient; a masked token still counts in the mean that the aggregation
takes, so masking never raises the weight of others; entropy, KL and value terms are not weighted; a token that was not
sampled has w = 1.
Shapes: M tokens.
"""

import torch

from turnwise.losses.policy import bounded_exp


def masked_weights(
    logprob: torch.Tensor, sampler_logprob: torch.Tensor, band: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per token [M]: the ratio within the band, or 0, and whether it was masked."""
    ratio = bounded_exp(logprob - sampler_logprob)  # [M]
    low, high = band
    masked = (ratio < low) | (ratio > high)  # [M]
    return torch.where(masked, torch.zeros_like(ratio), ratio), masked
