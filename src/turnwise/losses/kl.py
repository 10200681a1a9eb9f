"""Estimates of KL(π ‖ π_ref) from sampled tokens, with d = log π − log π_ref.

    k1 = d                unbiased, may be negative; as a loss its gradient has mean zero
    k2 = d² / 2           biased and small in variance; as a loss its gradient is that of KL(π ‖ π_ref), in the mean
    k3 = e^{−d} − 1 + d   unbiased and never negative; as a loss its gradient is that of KL(π_ref ‖ π), in the mean

The gradient of a loss sees log π alone, and not that tokens are sampled from π. With E over tokens y ~ π:

    k1    E[∇d] = E[∇log π] = Σ_y ∇π(y) = 0
    k2    E[d ∇d] = Σ_y ∇π(y) · log(π(y) / π_ref(y)) = ∇KL(π ‖ π_ref)
    k3    E[(1 − e^{−d}) ∇d] = 0 − Σ_y π_ref(y) ∇log π(y) = ∇KL(π_ref ‖ π)

So GRPO's loss term, k3, holds the policy to the reference by the forward KL, which covers all that the reference does;
k2, and k1 in the reward, by the reverse one. The two agree to second order where π is close to π_ref.

Source: Schulman, "Approximating KL Divergence" (2020). Departure: beyond d = −20, k3 is as it is there,
without a gradient: its exponent would overflow.
Shapes: M tokens sampled from π.
"""

import torch

from turnwise.losses.settings import KlEstimator

_MAX_EXPONENT = 20.0


def kl_estimate(logprob: torch.Tensor, reference_logprob: torch.Tensor, form: KlEstimator) -> torch.Tensor:
    """Per token [M]."""
    difference = logprob - reference_logprob  # [M]
    if form == "k1":
        return difference
    if form == "k2":
        return 0.5 * difference.square()
    held = difference.clamp(min=-_MAX_EXPONENT)  # [M]
    return (-held).exp() - 1 + held


def kl_error(
    logprob: torch.Tensor, reference_logprob: torch.Tensor, form: KlEstimator, error: torch.Tensor
) -> torch.Tensor:
    """How far an estimate [M] may be off where d is by `error` [M]: its Taylor series to second order."""
    difference = logprob - reference_logprob  # [M]
    if form == "k1":
        return error
    if form == "k2":
        return difference.abs() * error + 0.5 * error.square()
    inverse_ratio = (-difference).clamp(max=_MAX_EXPONENT).exp()  # [M]
    return (1 - inverse_ratio).abs() * error + 0.5 * inverse_ratio * error.square()
