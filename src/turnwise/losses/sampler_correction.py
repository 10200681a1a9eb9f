"""Truncated importance sampling: makes up for a sampler whose probabilities are not the learner's.

    w = min(π_learner / π_sampler, cap)            the policy's loss of a token counts w times

Both are of the same token under the same weights; an inference engine computes them with other kernels, another
precision or weights a little older, and its samples then follow another policy than the one that learns. The ratio
of the policy loss is taken against π_learner, so bounds act on what the update did and w on what the engine did.
Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); Ionides (2008).
Departures: w has no gradient; entropy, KL and value terms are not weighed; a token that no sampler drew counts once.
Shapes: M tokens.
"""

import torch

from turnwise.losses.policy import bounded_exp


def sampler_weights(logprob: torch.Tensor, sampler_logprob: torch.Tensor, cap: float) -> torch.Tensor:
    """Per token [M]: the learner twice as sure as the sampler weighs 2, or the cap where that is less."""
    return bounded_exp(logprob - sampler_logprob).clamp(max=cap)
