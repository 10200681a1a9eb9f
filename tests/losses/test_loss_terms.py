"""Policy, KL and value losses against numbers worked by hand, their gradients included."""

import math

import pytest
import torch

from turnwise.losses.kl import kl_estimate
from turnwise.losses.policy import policy_loss
from turnwise.losses.settings import LossSettings
from turnwise.losses.value import value_loss


def _policy(ratio, advantage, *, low=0.2, high=0.28, dual=None):
    logprob = torch.tensor(ratio, dtype=torch.double).log().requires_grad_()
    result = policy_loss(
        logprob,
        torch.zeros(len(ratio), dtype=torch.double),
        torch.tensor(advantage, dtype=torch.double),
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
    )
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprob)
    return result.loss.tolist(), gradient.tolist(), result.clipped.tolist()


def test_a_ratio_of_one_is_the_policy_gradient():
    loss, gradient, clipped = _policy([1.0, 1.0], [2.0, -3.0])
    assert loss == pytest.approx([-2.0, 3.0])
    assert gradient == pytest.approx([-2.0, 3.0])
    assert clipped == [False, False]


def test_clipping_has_two_bounds_and_stops_only_what_went_far_enough():
    """A > 0 stops above 1.28, A < 0 below .8; a ratio on the wrong side keeps its gradient."""
    ratios = [1.5, 1.25, 0.5, 1.5, 0.5, 0.9]
    loss, gradient, clipped = _policy(ratios, [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    assert loss == pytest.approx([-1.28, -1.25, -0.5, 1.5, 0.8, 0.9])
    assert gradient == pytest.approx([0.0, -1.25, -0.5, 1.5, 0.0, 0.9])
    assert clipped == [True, False, False, False, True, False]


def test_dual_clip_bounds_the_loss_of_a_bad_action_alone():
    loss, gradient, clipped = _policy([10.0, 2.0, 10.0], [-1.0, -1.0, 1.0], dual=3.0)
    assert loss == pytest.approx([3.0, 2.0, -1.28])
    assert gradient == pytest.approx([0.0, 2.0, 0.0])
    assert clipped == [True, False, True]


def test_no_advantage_and_an_absurd_ratio_is_still_nothing():
    loss, gradient, _ = _policy([1e300], [0.0])
    assert loss == [0.0]
    assert gradient == [0.0]


def test_the_three_kl_estimates():
    logprob = torch.tensor([math.log(0.5), math.log(0.2)], dtype=torch.double)
    reference = torch.tensor([math.log(0.25), math.log(0.4)], dtype=torch.double)
    half = math.log(2)
    assert kl_estimate(logprob, reference, "k1").tolist() == pytest.approx([half, -half])
    assert kl_estimate(logprob, reference, "k2").tolist() == pytest.approx([half**2 / 2, half**2 / 2])
    assert kl_estimate(logprob, reference, "k3").tolist() == pytest.approx([0.5 - 1 + half, 2 - 1 - half])


@pytest.mark.parametrize("form", ["k1", "k3"])
def test_unbiased_estimates_have_the_kl_as_their_mean(form):
    policy = torch.tensor([0.7, 0.2, 0.1], dtype=torch.double)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.double)
    exact = (policy * (policy / reference).log()).sum()
    estimate = (policy * kl_estimate(policy.log(), reference.log(), form)).sum()
    assert float(estimate) == pytest.approx(float(exact))


def test_kl_takes_the_form_that_suits_its_place_unless_told():
    assert LossSettings(kl_in="reward").kl_form == "k1"
    assert LossSettings(kl_in="loss").kl_form == "k3"
    assert LossSettings(kl_in="loss", kl_estimator="k2").kl_form == "k2"


def test_value_loss_with_and_without_clipping():
    """From an old value 0 towards 1: at .5 the plain loss is .125; held at .2 it is .32, with no gradient."""
    value = torch.tensor([0.5, 0.1, 1.5], dtype=torch.double, requires_grad=True)
    old, target = torch.zeros(3, dtype=torch.double), torch.ones(3, dtype=torch.double)
    assert value_loss(value, old, target, clip=None).tolist() == pytest.approx([0.125, 0.405, 0.125])
    clipped = value_loss(value, old, target, clip=0.2)
    assert clipped.tolist() == pytest.approx([0.32, 0.405, 0.32])
    clipped.sum().backward()
    assert value.grad.tolist() == pytest.approx([0.0, -0.9, 0.0])


def test_a_value_is_held_near_its_old_one_on_the_way_down_too():
    """From an old value 2 towards 0: at 1 the plain loss is .5; held at 1.8 it is 1.62, with no gradient."""
    value = torch.tensor([1.0, 1.9], dtype=torch.double, requires_grad=True)
    old, target = torch.full((2,), 2.0, dtype=torch.double), torch.zeros(2, dtype=torch.double)
    clipped = value_loss(value, old, target, clip=0.2)
    assert clipped.tolist() == pytest.approx([1.62, 1.805])
    clipped.sum().backward()
    assert value.grad.tolist() == pytest.approx([0.0, 1.9])
