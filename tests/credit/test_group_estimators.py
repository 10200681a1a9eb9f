"""GRPO, Dr. GRPO, RLOO and the two REINFORCE++ by hand; what counts is trajectories, not tokens."""

import pytest
import torch

from turnwise.credit.base import TokenBatch
from turnwise.credit.dr_grpo import dr_grpo
from turnwise.credit.grpo import grpo
from turnwise.credit.reinforce_pp import reinforce_pp
from turnwise.credit.reinforce_pp_baseline import reinforce_pp_baseline
from turnwise.credit.rloo import rloo


def _episodes(rewards, group):
    """One list of token rewards per trajectory."""
    trajectory = [i for i, tokens in enumerate(rewards) for _ in tokens]
    return TokenBatch(
        reward=torch.tensor([r for tokens in rewards for r in tokens], dtype=torch.double),
        trajectory=torch.tensor(trajectory),
        turn=torch.zeros(len(trajectory), dtype=torch.long),
        group=torch.tensor(group),
        truncated=torch.zeros(len(group), dtype=torch.bool),
    )


THREE = _episodes([[0.0, 3.0], [0.0], [0.0, 0.0, 0.0]], [0, 0, 0])


def test_grpo_divides_by_the_sample_std_of_the_group():
    """Returns 3, 0, 0: mean 1, std √3; the long trajectory counts once."""
    root = 3**0.5
    assert grpo(THREE, divide_by_std=True).advantage.tolist() == pytest.approx(
        [2 / root, 2 / root, -1 / root, -1 / root, -1 / root, -1 / root]
    )


def test_grpo_without_the_std_is_the_plain_difference():
    assert grpo(THREE, divide_by_std=False).advantage.tolist() == pytest.approx([2, 2, -1, -1, -1, -1])


def test_dr_grpo_is_the_plain_difference_and_a_scaled_rloo():
    assert dr_grpo(THREE).advantage.tolist() == pytest.approx([2, 2, -1, -1, -1, -1])
    assert (1.5 * dr_grpo(THREE).advantage).tolist() == pytest.approx(rloo(THREE).advantage.tolist())


def test_rloo_leaves_its_own_return_out_of_the_baseline():
    """3 − mean(0, 0) and 0 − mean(3, 0)."""
    assert rloo(THREE).advantage.tolist() == pytest.approx([3, 3, -1.5, -1.5, -1.5, -1.5])


def test_process_and_outcome_rewards_make_one_return():
    episodes = _episodes([[0.25, 0.0, 0.75], [1.0], [0.0]], [0, 0, 0])
    advantage = grpo(episodes, divide_by_std=False).advantage
    assert advantage.tolist() == pytest.approx([1 / 3] * 4 + [-2 / 3])


def test_groups_are_apart():
    episodes = _episodes([[1.0], [0.0], [10.0], [30.0]], [7, 7, 2, 2])
    assert grpo(episodes, divide_by_std=False).advantage.tolist() == pytest.approx([0.5, -0.5, -10, 10])


@pytest.mark.parametrize(
    "estimator",
    [lambda e: grpo(e, divide_by_std=True), dr_grpo, rloo, reinforce_pp_baseline, lambda e: reinforce_pp(e, gamma=1)],
)
def test_equal_returns_give_exactly_zero(estimator):
    """Their mean is off by a rounding error; an optimizer that rescales gradients must not see it."""
    episodes = _episodes([[0.1]] * 3 + [[0.1 + 0.2 - 0.2]], [0, 0, 0, 0])
    assert estimator(episodes).advantage.tolist() == [0.0] * 4


@pytest.mark.parametrize("estimator", [lambda e: grpo(e, divide_by_std=True), dr_grpo, rloo])
def test_a_group_of_one_gives_zero(estimator):
    episodes = _episodes([[1.0], [5.0], [0.0]], [0, 1, 0])
    advantage = estimator(episodes).advantage
    assert advantage[1] == 0.0
    assert advantage[0] > 0 > advantage[2]


def test_reinforce_pp_normalises_returns_to_go_over_all_tokens():
    """γ = ½: returns-to-go ½, 1 | 0, 0: mean 3/8, squares about it 1/64 + 25/64 + 9/64 + 9/64 over 3 = 11/48."""
    episodes = _episodes([[0.0, 1.0], [0.0, 0.0]], [0, 1])
    std = (11 / 48) ** 0.5
    expected = [(g - 0.375) / std for g in (0.5, 1.0, 0.0, 0.0)]
    assert reinforce_pp(episodes, gamma=0.5).advantage.tolist() == pytest.approx(expected)


def test_reinforce_pp_baseline_subtracts_the_group_and_normalises_over_the_batch():
    """Deviations ½, −½ (two tokens), 1, −1: over tokens mean −1/10, variance (.36 + 2·.16 + 1.21 + .81)/4 = .675."""
    episodes = _episodes([[1.0], [0.0, 0.0], [2.0], [0.0]], [0, 0, 1, 1])
    std = 0.675**0.5
    expected = [(d + 0.1) / std for d in (0.5, -0.5, -0.5, 1.0, -1.0)]
    assert reinforce_pp_baseline(episodes).advantage.tolist() == pytest.approx(expected)
