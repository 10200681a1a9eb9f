"""Truncated importance sampling (TIS): corrects for an engine whose probabilities are not the learner's.

    w = min(π_learner / π_sampler, cap)            the policy loss of a token is multiplied by w

Both are of the same token under the same weights; an inference engine computes them with other kernels, another
precision or weights a little older, so the behaviour policy is not the one that learns. The ratio of the policy loss is
taken against π_learner, so clipping acts on what the update changed and w on what the engine changed.
Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); Ionides (2008).
Departures: w has no gradient; entropy, KL and value terms are not weighted; a token that was not sampled has w = 1.
Shapes: M tokens.
"""

import torch

from turnwise.losses.policy import bounded_exp


def tis_weights(logprob: torch.Tensor, sampler_logprob: torch.Tensor, cap: float) -> torch.Tensor:
    """Per token [M]: where the learner's probability is twice the sampler's, 2, or the cap where that is less."""
    return bounded_exp(logprob - sampler_logprob).clamp(max=cap)
