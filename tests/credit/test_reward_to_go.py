"""Reward-to-go per turn by hand, and its gradient against the exact one where the policy decides when to stop."""

import itertools

import pytest
import torch

from credit_by_hand import episodes, per_turn, random_rewards
from turnwise.credit.reward_to_go import reward_to_go
from turnwise.credit.rloo import rloo


def test_a_turn_is_compared_with_the_others_that_reached_it():
    """γ = ½: returns to go 1.5, 1, 2 | 2, 4 | 1. At turn 0 the others' means are 1.5, 1.25 and 1.75; at turn 1 they are
    4 and 1; turn 2 was reached by nobody else."""
    rewards = [[[1.0], [0.0, 0.0], [0.0, 2.0]], [[0.0, 0.0, 0.0], [4.0]], [[1.0]]]
    credit = reward_to_go(episodes(rewards), turn_gamma=0.5)
    assert per_turn(credit.advantage, rewards) == [
        pytest.approx([0.0, -3.0, 2.0]),
        pytest.approx([0.75, 3.0]),
        pytest.approx([-0.75]),
    ]
    assert credit.value_target is None


def test_what_was_paid_before_a_turn_is_not_its_merit():
    rewards = [[[5.0], [1.0]], [[0.0], [0.0]]]
    advantage = per_turn(reward_to_go(episodes(rewards), turn_gamma=1.0).advantage, rewards)
    assert advantage == [pytest.approx([6.0, 1.0]), pytest.approx([-6.0, -1.0])]


def test_groups_are_apart():
    rewards = [[[1.0]], [[7.0]], [[0.0]], [[5.0]]]
    advantage = reward_to_go(episodes(rewards, group=[3, 1, 3, 1]), turn_gamma=1.0).advantage
    assert advantage.tolist() == pytest.approx([1.0, 2.0, -1.0, -2.0])


def test_a_group_of_one_is_plain_reinforce():
    rewards = [[[0.5], [0.0, 2.0]]]
    assert per_turn(reward_to_go(episodes(rewards), turn_gamma=1.0).advantage, rewards) == [pytest.approx([2.5, 2.0])]


def test_equal_returns_give_exactly_zero():
    rewards = [[[0.1], [0.2]], [[0.1], [0.2]], [[0.1], [0.1 + 0.2 - 0.1]]]
    assert reward_to_go(episodes(rewards), turn_gamma=0.3).advantage.tolist() == [0.0] * 6


def test_a_group_that_earned_nothing_gives_zero():
    assert reward_to_go(episodes([[[0.0, 0.0], [0.0]], [[0.0]]]), turn_gamma=1.0).advantage.tolist() == [0.0] * 4


@pytest.mark.parametrize("seed", range(5))
def test_one_turn_each_is_rloo(seed):
    batch = episodes([[turns[0]] for turns in random_rewards(seed)], group=[0, 0, 0, 1, 1, 1])
    assert reward_to_go(batch, turn_gamma=0.5).advantage.tolist() == pytest.approx(rloo(batch).advantage.tolist())


def test_the_gradient_is_exact_though_the_policy_decides_when_to_stop():
    """Go on with probability p, else stop with ½; then win 1 with probability q, else lose 1: J = (1−p)/2 + p(2q−1).

    Over all pairs of episodes, the expected gradient is that of J. Comparing with the mean of all who reached the turn,
    oneself included, would halve the last turn's part of it whenever both did.
    """
    p, q = 0.3, 0.8
    paths = [
        (1 - p, [[0.5]], [-1.0 / (1 - p)], []),
        (p * q, [[0.0], [1.0]], [1.0 / p], [1.0 / q]),
        (p * (1 - q), [[0.0], [-1.0]], [1.0 / p], [-1.0 / (1 - q)]),
    ]
    gradient = torch.zeros(2, dtype=torch.double)
    for one, other in itertools.product(paths, paths):
        rewards = [one[1], other[1]]
        advantage = per_turn(reward_to_go(episodes(rewards), turn_gamma=1.0).advantage, rewards)
        for path, credit in zip((one, other), advantage, strict=True):
            scores = torch.zeros(2, dtype=torch.double)
            scores[0] = path[2][0] * credit[0]
            scores[1] = path[3][0] * credit[1] if path[3] else 0.0
            gradient += one[0] * other[0] * scores / 2
    assert gradient.tolist() == pytest.approx([-0.5 + 2 * q - 1, 2 * p])
