"""Estimates of KL(π ‖ π_ref) from sampled tokens, with d = log π − log π_ref.

    k1 = d                unbiased, may be negative; as a loss its gradient has mean zero
    k2 = d² / 2           biased and small in variance; as a loss its gradient is that of the KL, in the mean
    k3 = e^{−d} − 1 + d   unbiased and never negative; GRPO's loss term

Source: Schulman, "Approximating KL Divergence" (2020). Departure: −d is held at 20 at most in k3's exponent.
Shapes: M tokens sampled from π.
"""

import torch

from turnwise.losses.settings import KlEstimator


def kl_estimate(logprob: torch.Tensor, reference_logprob: torch.Tensor, form: KlEstimator) -> torch.Tensor:
    """Per token [M]."""
    difference = logprob - reference_logprob  # [M]
    if form == "k1":
        return difference
    if form == "k2":
        return 0.5 * difference.square()
    return (-difference).clamp(max=20.0).exp() - 1 + difference
