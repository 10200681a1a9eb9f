"""CISPO by hand: a bound on the weight, and a gradient for every token."""

import pytest
import torch

from turnwise.losses.cispo import cispo_loss
from turnwise.losses.policy import policy_loss


def test_the_weight_is_bounded_above_and_no_gradient_is_lost():
    """Ratios 1, 2, ½, 2 under 1.28; the loss itself is −w · A · log π."""
    logprob = torch.tensor([1.0, 2.0, 0.5, 2.0], dtype=torch.double).log().requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.double)
    result = cispo_loss(logprob, torch.zeros(4, dtype=torch.double), advantage, clip_high=0.28)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprob)
    half = float(torch.tensor(0.5).log())
    assert result.loss.tolist() == pytest.approx([0.0, 1.28 * half, 0.5 * half, -1.28 * half])
    assert gradient.tolist() == pytest.approx([-1.0, -1.28, 0.5, 1.28])
    assert result.clipped.tolist() == [False, True, False, True]


def test_a_weight_at_its_bound_is_not_clipped():
    unmoved = torch.zeros(1, dtype=torch.double)
    result = cispo_loss(unmoved, unmoved, torch.ones(1, dtype=torch.double), clip_high=0.0)
    assert result.clipped.tolist() == [False]


def test_an_unmoved_policy_has_the_gradient_of_the_clip():
    old = torch.tensor([-0.5, -2.0, -0.1], dtype=torch.double)
    advantage = torch.tensor([0.7, -0.3, 0.0], dtype=torch.double)
    gradients = []
    for loss in (
        lambda logprob: cispo_loss(logprob, old, advantage, clip_high=0.2),
        lambda logprob: policy_loss(logprob, old, advantage, clip_low=0.2, clip_high=0.2, dual_clip=None),
    ):
        logprob = old.clone().requires_grad_()
        gradients.append(torch.autograd.grad(loss(logprob).loss.sum(), logprob)[0].tolist())
    assert gradients[0] == pytest.approx(gradients[1])
    assert gradients[0] == pytest.approx([-0.7, 0.3, 0.0])


def test_an_absurd_ratio_stays_finite():
    logprob = torch.tensor([0.0, 0.0], dtype=torch.double, requires_grad=True)
    old = torch.tensor([-900.0, 900.0], dtype=torch.double)
    result = cispo_loss(logprob, old, torch.tensor([0.0, 1.0], dtype=torch.double), clip_high=0.2)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprob)
    assert gradient.tolist() == pytest.approx([0.0, 0.0], abs=1e-8)
