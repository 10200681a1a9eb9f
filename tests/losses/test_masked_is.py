"""Tokens that sampler and learner disagree about are left out, and the mean of what is kept is the learner's."""

import math

import pytest
import torch

from turnwise.losses.masked_is import masked_weights

LEARNER = torch.tensor([0.5, 0.1, 0.36, 0.04], dtype=torch.double)
SAMPLER = torch.tensor([0.25, 0.2, 0.06, 0.49], dtype=torch.double)
"""Ratios 2, ½, 6 and .082."""


@pytest.mark.parametrize(
    ("band", "weights"),
    [
        ((0.0, 2.0), [2.0, 0.5, 0.0, 4 / 49]),
        ((0.5, 5.0), [2.0, 0.5, 0.0, 0.0]),
        ((0.0, math.inf), [2.0, 0.5, 6.0, 4 / 49]),
        ((1.0, 1.0), [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_ratio_within_the_band_is_the_weight(band, weights):
    found, masked = masked_weights(LEARNER.log(), SAMPLER.log(), band)
    assert found.tolist() == pytest.approx(weights)
    assert masked.tolist() == [weight == 0 for weight in weights]


@pytest.mark.parametrize("band", [(0.0, 2.5), (0.5, 5.0), (0.0, math.inf)])
def test_the_claim_over_all_draws(band):
    """E over the sampler of w · A · ∇log π = the policy gradient less the part of the masked tokens, exactly."""
    logits = LEARNER.log().clone().requires_grad_()
    advantage = torch.tensor([1.0, -2.0, 5.0, 0.5], dtype=torch.double)
    logprob = logits.log_softmax(-1)
    weights, masked = masked_weights(logprob.detach(), SAMPLER.log(), band)
    (estimate,) = torch.autograd.grad((SAMPLER * weights * advantage * logprob).sum(), logits, retain_graph=True)
    kept = torch.where(masked, 0.0, LEARNER)
    (kept_part,) = torch.autograd.grad((kept * advantage * logprob).sum(), logits, retain_graph=True)
    (truth,) = torch.autograd.grad((LEARNER * advantage * logprob).sum(), logits)
    assert estimate.tolist() == pytest.approx(kept_part.tolist(), abs=1e-12)
    assert (estimate.tolist() == pytest.approx(truth.tolist(), abs=1e-12)) is not bool(masked.any())


def test_agreement_is_never_masked():
    logprob = torch.tensor([-0.1, -30.0, -3.0])
    assert not masked_weights(logprob, logprob, (1.0, 1.0))[1].any()


def test_impossible_tokens_are_masked_and_finite():
    found, masked = masked_weights(torch.tensor([-1.0, -math.inf]), torch.tensor([-math.inf, -1.0]), (0.5, 5.0))
    assert found.tolist() == [0.0, 0.0]
    assert masked.all()
