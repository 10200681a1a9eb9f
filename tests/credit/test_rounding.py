"""Rewards that carry the rounding of logprobs: what lies within it is no difference, and what lies beyond it is."""

from dataclasses import replace

import pytest
import torch

from turnwise.credit.base import TokenBatch
from turnwise.credit.estimate import CreditSettings, estimate
from turnwise.credit.scan import discounted_error
from turnwise.credit.settings import ESTIMATORS
from turnwise.credit.statistics import compare_with_group, normalise

NOISE = 1e-9
"""A KL coefficient of 1e-3 times the rounding of a float32 logprob."""


def _tokens(*, noise=NOISE, error=NOISE * 4, rewards=(0.0,) * 8):
    """Eight trajectories of two turns and six tokens in two groups, with a penalty that is noise alone."""
    trajectory = torch.arange(8).repeat_interleave(6)
    reward = noise * torch.randn(48, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    reward[5::6] += torch.tensor(rewards, dtype=torch.double)
    return TokenBatch(
        reward=reward,
        trajectory=trajectory,
        turn=torch.tensor([0, 0, 0, 1, 1, 1] * 8),
        group=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        truncated=torch.zeros(8, dtype=torch.bool),
        value=torch.zeros(48, dtype=torch.double),
        final_value=torch.zeros(8, dtype=torch.double),
        state=torch.tensor([0, 0, 0, 1, 1, 1] * 4 + [2, 2, 2, 3, 3, 3] * 4),
        reward_error=torch.full((48,), error, dtype=torch.double),
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_noise_of_logprobs_is_no_advantage(estimator):
    advantage = estimate(_tokens(), CreditSettings(estimator=estimator)).advantage
    assert torch.equal(advantage, torch.zeros_like(advantage))


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "reinforce++", "reinforce++-baseline", "gae"])
def test_the_same_differences_of_exact_rewards_are(estimator):
    exact = replace(_tokens(), reward_error=None)
    assert estimate(exact, CreditSettings(estimator=estimator)).advantage.std() > 0.5


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_small_reward_counts_beside_the_noise(estimator):
    """Rewards of a millionth, a thousand times the noise: the advantages are those without it."""
    rewards = (0, 0, 1e-6, 1e-6, 0, 1e-6, 0, 0)
    settings = CreditSettings(estimator=estimator)
    noisy = estimate(_tokens(rewards=rewards), settings).advantage
    clean = estimate(_tokens(rewards=rewards, noise=0.0, error=0.0), settings).advantage
    assert noisy.abs().max() > 0
    assert torch.allclose(noisy, clean, rtol=0, atol=0.02 * float(clean.abs().max()))


def test_exact_rewards_differ_however_small_the_difference():
    peers = compare_with_group(torch.tensor([0.0, 1e-12], dtype=torch.double), torch.tensor([0, 0]))
    assert peers.standardised().tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


@pytest.mark.parametrize(("gap", "deviation"), [(7.8, [0.0, 0.0]), (7.9, [-3.95, 3.95]), (10.0, [-5.0, 5.0])])
def test_a_member_is_as_uncertain_as_its_own_return_and_the_mean(gap, deviation):
    """Errors 3 and 4 of a group of two: that of the mean is 2.5, so up to 3.91 and 4.72 may be rounding."""
    group, error = torch.tensor([0, 0]), torch.tensor([3.0, 4.0], dtype=torch.double)
    found = compare_with_group(torch.tensor([0.0, gap], dtype=torch.double), group, error).deviation
    assert found.tolist() == pytest.approx(deviation)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "dr-grpo", "reinforce++", "reinforce++-baseline"])
def test_a_real_difference_counts_on_both_sides(estimator):
    """Three win and one loses: each winner is nearer to the mean than its error, and the loser is not."""
    tokens = _tokens(rewards=(1, 1, 1, 0, 1, 1, 1, 0), error=0.15)
    advantage = estimate(tokens, CreditSettings(estimator=estimator)).advantage
    assert (advantage[tokens.trajectory % 4 < 3] > 0).all()
    assert (advantage[tokens.trajectory % 4 == 3] < 0).all()
    assert float(advantage.mean()) == pytest.approx(0, abs=1e-6)


def test_a_batch_within_its_error_is_zero_and_beyond_it_normal():
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.double)
    assert normalise(values, torch.full_like(values, 0.9)).tolist() == [0, 0, 0]
    assert normalise(values, torch.full_like(values, 0.5)).tolist() == pytest.approx([-1, 0, 1])


def test_errors_of_a_discounted_sum_add_up_as_squares():
    error = torch.tensor([3.0, 4.0, 2.0], dtype=torch.double)
    sums = discounted_error(error, torch.tensor([0, 0, 1]), 1.0)
    assert sums.tolist() == pytest.approx([5.0, 4.0, 2.0])
    assert discounted_error(error, torch.tensor([0, 0, 1]), 0.5)[0] == pytest.approx((9 + 4) ** 0.5)
    assert discounted_error(None, torch.tensor([0, 0, 1]), 0.5) is None


@pytest.mark.parametrize(
    ("estimator", "settings", "paid", "advantage"),
    [
        # Errors 1 and 4, and √4.25 of the mean: up to 2.29 and 4.5 may be rounding. These are ± 4, and then ± 2.2.
        ("gae", {"gamma": 0.5, "lam": 0.5}, 8.0, [0.5**0.5, -(0.5**0.5)]),
        ("gae", {"gamma": 0.5, "lam": 0.5}, 4.4, [0.0, 0.0]),
        ("turn-gae", {"turn_gamma": 0.5, "turn_lam": 0.5}, 8.0, [0.5**0.5, -(0.5**0.5)]),
        ("turn-gae", {"turn_gamma": 0.5, "turn_lam": 0.5}, 4.4, [0.0, 0.0]),
        # Errors 4 and 4, as if nothing were discounted: up to 4.9 may be rounding. These are ± 5, and then ± 4.8.
        ("bilevel-gae", {"turn_gamma": 0.5, "turn_lam": 0.5}, 10.0, [0.5**0.5, -(0.5**0.5)]),
        ("bilevel-gae", {"turn_gamma": 0.5, "turn_lam": 0.5}, 9.6, [0.0, 0.0]),
    ],
)
def test_what_is_no_advantage_by_hand(estimator, settings, paid, advantage):
    """Two turns of a token each; the first is paid, and the reward of the second has an error of 4."""
    tokens = TokenBatch(
        reward=torch.tensor([paid, 0.0], dtype=torch.double),
        trajectory=torch.tensor([0, 0]),
        turn=torch.tensor([0, 1]),
        group=torch.tensor([0]),
        truncated=torch.tensor([False]),
        value=torch.zeros(2, dtype=torch.double),
        final_value=torch.zeros(1, dtype=torch.double),
        reward_error=torch.tensor([0.0, 4.0], dtype=torch.double),
    )
    found = estimate(tokens, CreditSettings(estimator=estimator, **settings)).advantage
    assert found.tolist() == pytest.approx(advantage)
