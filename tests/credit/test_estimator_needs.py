"""What each estimator needs, proved by running it: a critic's values, and others of the same task to compare with."""

import pytest
import torch

from credit_by_hand import episodes
from turnwise.credit.base import Credit, TokenBatch, estimator
from turnwise.credit.estimate import estimate
from turnwise.credit.scan import discounted_error
from turnwise.credit.settings import ESTIMATORS, CreditSettings
from turnwise.credit.statistics import compare_with_group, normalise
from turnwise.credit.values import require_values
from turnwise.errors import ConfigError

REWARDS = [[[0.0, 1.0]], [[0.0, 3.0]]]
VALUES = [[[0.5, 0.5]], [[0.5, 0.5]]]
EPSILON = torch.finfo(torch.double).eps


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_that_needs_a_critic_cannot_do_without_and_the_others_can(name):
    settings = CreditSettings(estimator=name)
    tokens = episodes(REWARDS, state=[[0], [0]])
    if settings.needs_critic:
        with pytest.raises(ConfigError, match="needs a critic"):
            estimate(tokens, settings)
    else:
        assert len(estimate(tokens, settings).advantage) == 4


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_that_compares_groups_learns_nothing_from_tasks_sampled_once_and_the_others_do(name):
    settings = CreditSettings(estimator=name)
    tokens = episodes(REWARDS, group=[0, 1], value=VALUES, state=[[0], [1]])
    assert bool(estimate(tokens, settings).advantage.any()) is not settings.compares_groups


@estimator(needs_critic=True)
def with_critic(tokens: TokenBatch) -> Credit:
    return Credit(advantage=tokens.reward, value_target=tokens.reward)


@estimator(compares_groups=True)
def of_groups(tokens: TokenBatch) -> Credit:
    return Credit(advantage=tokens.reward)


def undeclared(tokens: TokenBatch) -> Credit:
    return Credit(advantage=tokens.reward)


@pytest.mark.parametrize(
    ("own", "needs_critic", "compares_groups"),
    [(with_critic, True, False), (of_groups, False, True), (undeclared, False, False)],
)
def test_ones_own_needs_what_it_declares_and_nothing_else(own, needs_critic, compares_groups):
    settings = CreditSettings(estimator=f"{__name__}:{own.__name__}")
    assert (settings.needs_critic, settings.compares_groups) == (needs_critic, compares_groups)


def test_an_estimator_may_be_the_function_itself():
    assert CreditSettings(estimator=of_groups).estimator == f"{__name__}:of_groups"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [({}, (False, False)), ({"needs_critic": True}, (True, False)), ({"compares_groups": True}, (False, True))],
)
def test_what_is_not_declared_is_not_needed(declared, expected):
    def own(tokens: TokenBatch) -> Credit:
        return Credit(advantage=tokens.reward)

    estimator(**declared)(own)
    assert (own.needs_critic, own.compares_groups) == expected


def test_values_without_the_one_after_the_end_are_no_critic():
    whole = episodes(REWARDS, value=VALUES)
    for missing in ("value", "final_value"):
        fields = {name: getattr(whole, name) for name in ("reward", "trajectory", "turn", "group", "truncated")}
        given = {name: getattr(whole, name) for name in ("value", "final_value") if name != missing}
        with pytest.raises(ConfigError, match="needs a critic's values"):
            require_values(TokenBatch(**fields, **given), "gae")


def test_two_values_are_enough_to_be_normal():
    assert normalise(torch.tensor([1.0, 5.0])).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


@pytest.mark.parametrize(("apart", "differ"), [(128, False), (200, True)])
def test_numbers_up_to_one_differ_beyond_64_roundings_of_their_mean(apart, differ):
    """Two values deviate from their mean by half of what lies between them."""
    values = torch.tensor([0.0, apart * EPSILON], dtype=torch.double)
    assert bool(compare_with_group(values, torch.tensor([0, 0])).deviation.any()) is differ
    assert bool(normalise(values).any()) is differ


def test_rounding_grows_with_the_numbers():
    values = torch.tensor([1e6, 1e6 * (1 + 64 * EPSILON)], dtype=torch.double)
    assert not normalise(values).any()


def test_an_error_decays_as_often_as_the_reward_it_is_of():
    """γ twice on the way to the first token: an error of 4 arrives as 4 · .3² there, whatever else is exact."""
    error = torch.tensor([0.0, 0.0, 4.0], dtype=torch.double)
    sums = discounted_error(error, torch.tensor([0, 0, 0]), 0.3)
    assert sums.tolist() == pytest.approx([0.36, 1.2, 4.0])
