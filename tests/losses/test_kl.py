"""The three estimates of the KL by hand: their values, their gradients as losses, and their rounding errors."""

import pytest
import torch

from turnwise.losses.kl import kl_error, kl_estimate


def _policies(requires_grad=True):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(7, dtype=torch.double, generator=generator).requires_grad_(requires_grad)
    return logits, torch.randn(7, dtype=torch.double, generator=generator).log_softmax(-1)


def _gradient_as_a_loss(form):
    """Of the mean over tokens sampled from π, whose probabilities are no part of the loss."""
    logits, reference = _policies()
    logprob = logits.log_softmax(-1)
    (logprob.exp().detach() * kl_estimate(logprob, reference, form)).sum().backward()
    return logits.grad


def _gradient_of_kl(direction):
    logits, reference = _policies()
    logprob = logits.log_softmax(-1)
    first, second = (logprob, reference) if direction == "to the reference" else (reference, logprob)
    (first.exp() * (first - second)).sum().backward()
    return logits.grad


def test_k1_as_a_loss_goes_nowhere():
    assert _gradient_as_a_loss("k1").abs().max() < 1e-15


def test_k2_as_a_loss_is_the_gradient_of_the_kl_to_the_reference():
    assert torch.allclose(_gradient_as_a_loss("k2"), _gradient_of_kl("to the reference"), atol=1e-14)


def test_k3_as_a_loss_is_the_gradient_of_the_kl_from_the_reference():
    found = _gradient_as_a_loss("k3")
    assert torch.allclose(found, _gradient_of_kl("from the reference"), atol=1e-14)
    assert (found - _gradient_of_kl("to the reference")).norm() > 0.1, "which is another gradient"


def test_k3_times_the_ratio_is_the_gradient_of_the_kl_to_the_reference():
    """As other trainers have it: with its weight π / π_old, a loss sees that tokens are sampled from π."""
    logits, reference = _policies()
    logprob = logits.log_softmax(-1)
    ratio = (logprob - logprob.detach()).exp()
    (logprob.exp().detach() * ratio * kl_estimate(logprob, reference, "k3")).sum().backward()
    assert torch.allclose(logits.grad, _gradient_of_kl("to the reference"), atol=1e-14)


@pytest.mark.parametrize("form", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(form):
    logits, reference = _policies(requires_grad=False)
    logprob = logits.log_softmax(-1)
    kl = (logprob.exp() * (logprob - reference)).sum()
    assert float((logprob.exp() * kl_estimate(logprob, reference, form)).sum()) == pytest.approx(float(kl))


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
@pytest.mark.parametrize("difference", [-2.0, -1e-3, 0.0, 1e-3, 2.0])
def test_an_estimate_is_within_its_error(form, difference):
    error = torch.tensor(1e-3, dtype=torch.double)
    true, reference = torch.tensor(difference - 1.0, dtype=torch.double), torch.tensor(-1.0, dtype=torch.double)
    for sign in (-1, 1):
        seen = true + sign * error
        off = (kl_estimate(seen, reference, form) - kl_estimate(true, reference, form)).abs()
        assert off <= kl_error(seen, reference, form, error) * 1.01
        assert kl_error(seen, reference, form, error) <= 8 * error


def test_k3_never_drives_the_policy_away_from_the_reference():
    """Beyond the exponent that is held, the term that is not would be left alone, and its gradient is the wrong way."""
    logprob = torch.tensor([-19.0, -20.5, -25.0], dtype=torch.double, requires_grad=True)
    kl_estimate(logprob, torch.zeros(3, dtype=torch.double), "k3").sum().backward()
    assert logprob.grad.tolist() == pytest.approx([1 - torch.tensor(19.0, dtype=torch.double).exp().item(), 0, 0])
