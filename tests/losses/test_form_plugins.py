"""A loss form of the user's own runs as ours do, and ours read what their signatures say."""

import inspect

import pytest
import torch

from turnwise.errors import ConfigError
from turnwise.losses.forms import surrogate_loss
from turnwise.losses.policy import PolicyLoss
from turnwise.losses.settings import FORM, FORMS, KNOWN, LossSettings
from turnwise.plugins import find_function


def plain(logprob, old_logprob, advantage, *, clip_high: float, scale: float = 1.0, segment=None) -> PolicyLoss:
    shared = 0 if segment is None else segment
    return PolicyLoss(loss=-scale * advantage * logprob + shared, clipped=logprob > clip_high)


def scaled(logprob, old_logprob, advantage, scale: float) -> PolicyLoss:
    return plain(logprob, old_logprob, advantage, clip_high=9.0, scale=scale)


def number(logprob, old_logprob, advantage) -> float:
    return 1.0


def run(settings: LossSettings, segment=None) -> PolicyLoss:
    logprob, advantage = torch.tensor([1.0, 2.0]), torch.tensor([1.0, -1.0])
    return surrogate_loss(logprob, torch.zeros(2), advantage, segment, settings)


@pytest.mark.parametrize("name", FORMS)
def test_what_a_form_reads_is_its_signature(name):
    parameters = list(inspect.signature(find_function(FORM, name, KNOWN)).parameters)
    assert parameters[:3] == ["logprob", "old_logprob", "advantage"]
    assert ("segment" in parameters) == FORMS[name].takes_segment
    assert set(parameters[3:]) - {"segment"} == set(FORMS[name].reads)


def test_ones_own_gets_settings_arguments_and_segments_by_name():
    settings = LossSettings(form=f"{__name__}:plain", clip_high=1.5, args={"scale": 3.0})
    result = run(settings)
    assert (result.loss.tolist(), result.clipped.tolist()) == ([-3.0, 6.0], [False, True])
    shared = LossSettings(form=plain, ratio="turn")
    assert run(shared, torch.tensor([10.0, 20.0])).loss.tolist() == [9.0, 22.0]
    assert dict(settings.unread()) == {
        "clip_low": "form",
        "dual_clip": "form",
        "kl_in": "kl_coef",
        "kl_estimator": "kl_coef",
    }


def test_what_follows_the_three_tensors_is_an_argument_of_its_own():
    assert run(LossSettings(form=scaled, args={"scale": 2.0})).loss.tolist() == [-2.0, 4.0]
    with pytest.raises(ConfigError, match=r"loss.args: .*scaled missing a required argument: 'scale'"):
        run(LossSettings(form=scaled))


def test_a_broken_one_is_one_line():
    with pytest.raises(ConfigError, match=r"number returned float: return turnwise.losses.policy.PolicyLoss"):
        run(LossSettings(form=number))
    with pytest.raises(ConfigError, match=r"loss.args: .*plain has no argument 'scael' .did you mean 'scale'"):
        run(LossSettings(form=plain, args={"scael": 1.0}))
    with pytest.raises(ValueError, match=r"'clp' is not a loss form \(did you mean 'clip'\?\)"):
        LossSettings(form="clp")
