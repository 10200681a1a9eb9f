"""An estimator of the user's own runs as ours do, and ours read what their signatures say."""

import inspect

import pytest
import torch

from turnwise.credit.base import Credit, TokenBatch, estimator
from turnwise.credit.estimate import estimate
from turnwise.credit.settings import ESTIMATOR, ESTIMATORS, KNOWN, CreditSettings
from turnwise.errors import ConfigError
from turnwise.plugins import find_function


def tokens():
    return TokenBatch(
        reward=torch.tensor([1.0, 0.0, 3.0], dtype=torch.double),
        trajectory=torch.tensor([0, 0, 1]),
        turn=torch.tensor([0, 1, 0]),
        group=torch.tensor([0, 0]),
        truncated=torch.tensor([False, False]),
    )


@estimator(compares_groups=True)
def scaled(tokens: TokenBatch, *, gamma: float, factor: float = 2.0) -> Credit:
    return Credit(advantage=factor * gamma * tokens.reward)


def divided(tokens: TokenBatch, by: float) -> Credit:
    return Credit(advantage=tokens.reward / by)


@estimator(needs_critic=True)
def without_targets(tokens: TokenBatch) -> Credit:
    return Credit(advantage=tokens.reward)


def too_few(tokens: TokenBatch) -> Credit:
    return Credit(advantage=tokens.returns())


def no_credit(tokens: TokenBatch) -> torch.Tensor:
    return tokens.reward


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_an_estimator_reads_is_its_signature(name):
    function = find_function(ESTIMATOR, name, KNOWN)
    _, *keywords = inspect.signature(function).parameters
    assert set(ESTIMATORS[name].reads) == set(keywords)


def test_ones_own_gets_settings_and_arguments_by_name():
    settings = CreditSettings(estimator=f"{__name__}:scaled", gamma=0.5, args={"factor": 4.0})
    assert estimate(tokens(), settings).advantage.tolist() == [2.0, 0.0, 6.0]
    assert (settings.compares_groups, settings.needs_critic) == (True, False)
    by_object = CreditSettings(estimator=scaled, gamma=0.5)
    assert by_object.estimator == f"{__name__}:scaled"
    assert estimate(tokens(), by_object).advantage.tolist() == [1.0, 0.0, 3.0]
    assert "gamma" not in settings.unread()
    assert settings.unread()["lam"] == "estimator"
    no_settings = CreditSettings(estimator=divided, args={"by": 2.0})
    assert estimate(tokens(), no_settings).advantage.tolist() == [0.5, 0.0, 1.5]


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("scaled", {"facter": 1.0}, "has no argument 'facter' .did you mean 'factor'.*; its arguments are: factor"),
        ("scaled", {"factor": "much"}, 'credit.args.factor: expected a number, got "much"'),
        ("divided", {}, "credit.args: .*divided missing a required argument: 'by'"),
        ("scald", {}, "has no 'scald' .did you mean 'scaled'"),
        ("no_credit", {}, "no_credit returned Tensor: return turnwise.credit.base.Credit"),
        ("too_few", {}, r"too_few returned advantages of shape \[2\] for 3 credited tokens: return one per token"),
        ("without_targets", {}, "without_targets needs a critic, but returned no targets"),
    ],
)
def test_a_broken_one_is_one_line(name, args, words):
    with pytest.raises(ConfigError, match=words) as error:
        estimate(tokens(), CreditSettings(estimator=f"{__name__}:{name}", args=args))
    assert "\n" not in str(error.value)


def test_arguments_are_for_ones_own_estimator_alone():
    assert CreditSettings(estimator="grpo").unread()["args"] == "estimator"
    assert "args" not in CreditSettings(estimator=f"{__name__}:scaled").unread()
