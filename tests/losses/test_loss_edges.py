"""Where a bound or a weight just applies, and where it just does not."""

import pytest
import torch

from turnwise.errors import ConfigError
from turnwise.losses.aggregate import token_weights
from turnwise.losses.forms import surrogate_loss
from turnwise.losses.kl import kl_error, kl_estimate
from turnwise.losses.policy import PolicyLoss, clipped_surrogate
from turnwise.losses.settings import FORMS, LossSettings


@pytest.mark.parametrize("mode", ["token", "trajectory", "fixed"])
def test_a_token_alone_has_all_the_weight(mode):
    assert token_weights(torch.tensor([3]), mode, fixed_length=1 if mode == "fixed" else None).tolist() == [1.0]


@pytest.mark.parametrize("mode", ["token", "trajectory", "fixed"])
def test_no_tokens_have_no_weights(mode):
    assert token_weights(torch.tensor([], dtype=torch.long), mode, fixed_length=4).tolist() == []


def _surrogate(ratio, advantage, **bounds):
    given = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0} | bounds
    return clipped_surrogate(torch.tensor(ratio), torch.tensor(advantage), **given)


def test_the_dual_clip_spares_good_actions_however_small_their_advantage():
    result = _surrogate([1.0, 0.5], [0.5, 0.25])
    assert result.loss.tolist() == pytest.approx([-0.5, -0.125])
    assert result.clipped.tolist() == [False, False]


def test_a_ratio_at_its_bound_is_not_clipped():
    assert _surrogate([1.25, 0.75], [1.0, -1.0], clip_low=0.25, clip_high=0.25).clipped.tolist() == [False, False]
    bad = _surrogate([3.0, 3.5], [-1.0, -1.0])
    assert (bad.loss.tolist(), bad.clipped.tolist()) == ([3.0, 3.0], [False, True])


@pytest.mark.parametrize("form", ["k1", "k2", "k3"])
@pytest.mark.parametrize("difference", [-1.5, -0.2, 0.4, 1.5])
def test_the_error_of_an_estimate_is_what_it_may_be_off_and_no_more(form, difference):
    """Compared with the larger of the two ends, which second-order terms tell apart."""
    size = 0.05
    error, reference = torch.tensor(size, dtype=torch.double), torch.tensor(-1.0, dtype=torch.double)
    here = reference + difference
    ends = [kl_estimate(here + sign * error, reference, form) for sign in (-1, 1)]
    off = max(float((end - kl_estimate(here, reference, form)).abs()) for end in ends)
    assert float(kl_error(here, reference, form, error)) == pytest.approx(off, rel=0.02)


def _wrong_loss(logprob, old_logprob, advantage):
    return PolicyLoss(loss=logprob[:1], clipped=torch.zeros_like(logprob, dtype=torch.bool))


def _wrong_flags(logprob, old_logprob, advantage):
    return PolicyLoss(loss=logprob, clipped=torch.zeros(1, dtype=torch.bool))


@pytest.mark.parametrize("form", [_wrong_loss, _wrong_flags])
def test_a_form_of_ones_own_gives_a_loss_and_a_flag_for_every_token(form):
    settings = LossSettings(form=f"{__name__}:{form.__name__}")
    with pytest.raises(ConfigError, match="one loss and one clipped flag per token"):
        surrogate_loss(torch.zeros(3), torch.zeros(3), torch.ones(3), None, settings)


def _in_segments(logprob, old_logprob, advantage, *, segment, clip_high):
    return PolicyLoss(loss=segment * logprob * clip_high, clipped=logprob > 0)


def test_a_form_of_ones_own_may_share_ratios_and_tokens_without_an_advantage_still_count():
    settings = LossSettings(form=f"{__name__}:_in_segments", ratio="turn", clip_high=0.5)
    assert settings.info.takes_segment
    assert settings.info.reads == ("clip_high",)
    assert not settings.info.ignores_zero_advantage
    result = surrogate_loss(torch.ones(2), torch.ones(2), torch.ones(2), torch.tensor([0, 4]), settings)
    assert result.loss.tolist() == [0.0, 2.0]


def test_a_form_may_be_the_function_itself():
    assert LossSettings(form=_in_segments, ratio="turn").form == f"{__name__}:_in_segments"


@pytest.mark.parametrize("name", FORMS)
def test_forms_whose_tokens_without_an_advantage_have_no_loss_are_known(name):
    segment = torch.tensor([0, 0])
    settings = LossSettings(form=name, ratio="turn" if FORMS[name].takes_segment else "token")
    logprob = torch.tensor([-0.5, -2.0], requires_grad=True)
    result = surrogate_loss(logprob, torch.tensor([-2.0, -0.1]), torch.zeros(2), segment, settings)
    result.loss.sum().backward()
    assert (not logprob.grad.any() and not result.clipped.any()) is FORMS[name].ignores_zero_advantage
