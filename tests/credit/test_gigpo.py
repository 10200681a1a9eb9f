"""GiGPO by hand: the trajectory against its group, and the turn against the turns played in the same state."""

import pytest

from credit_by_hand import episodes, per_turn, random_rewards
from turnwise.credit.gigpo import gigpo
from turnwise.credit.grpo import grpo
from turnwise.errors import ConfigError

TWO = [[[0.0, 0.0], [1.0]], [[0.0], [0.0, 0.0]]]
"""Returns 1 and 0; with γ = ½ returns to go ½, 1 | 0, 0."""


def _gigpo(rewards, state, *, group=None, turn_gamma=0.5, step_weight=1.0, divide_by_std=False):
    batch = episodes(rewards, group=group, state=state)
    credit = gigpo(batch, turn_gamma=turn_gamma, step_weight=step_weight, divide_by_std=divide_by_std)
    return per_turn(credit.advantage, rewards)


def test_turns_in_one_state_are_compared_and_others_are_not():
    """±½ for the trajectories, and ±¼ twice over for the turns that both played in state 0."""
    advantage = _gigpo(TWO, [[0, 1], [0, 2]], step_weight=2.0)
    assert advantage == [pytest.approx([1.0, 0.5]), pytest.approx([-1.0, -0.5])]


def test_both_parts_are_divided_by_the_std_of_their_own_group():
    """Two values always stand √½ from their mean, in units of the sample's std."""
    root = 0.5**0.5
    advantage = _gigpo(TWO, [[0, 1], [0, 2]], divide_by_std=True)
    assert advantage == [pytest.approx([2 * root, root]), pytest.approx([-2 * root, -root])]


def test_a_state_met_at_different_turns_is_one_state():
    """Turn 1 of the first and turn 0 of the second: returns to go 1 and 0 in state 5."""
    advantage = _gigpo(TWO, [[4, 5], [5, 6]])
    assert advantage == [pytest.approx([0.5, 1.0]), pytest.approx([-1.0, -0.5])]


def test_states_without_a_name_are_not_compared():
    advantage = _gigpo(TWO, [[-1, -1], [-1, -1]])
    assert advantage == [pytest.approx([0.5, 0.5]), pytest.approx([-0.5, -0.5])]


def test_coming_back_to_a_state_counts_each_visit():
    """A group of one has nobody to be compared with but itself: ½ and 1 about ¾."""
    assert _gigpo([[[0.0], [1.0]]], [[0, 0]]) == [pytest.approx([-0.25, 0.25])]


def test_a_group_of_one_that_never_comes_back_gives_zero():
    assert _gigpo([[[0.0], [1.0]]], [[0, 1]], divide_by_std=True) == [[0.0, 0.0]]


def test_ties_give_exactly_zero():
    rewards = [[[0.1], [0.2]], [[0.1], [0.1 + 0.2 - 0.1]], [[0.1], [0.2]]]
    assert _gigpo(rewards, [[0, 1]] * 3, divide_by_std=True) == [[0.0, 0.0]] * 3


def test_a_group_that_earned_nothing_gives_zero():
    assert _gigpo([[[0.0], [0.0, 0.0]], [[0.0]]], [[0, 1], [0]], divide_by_std=True) == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize("divide_by_std", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_where_no_state_repeats_it_is_grpo(seed, divide_by_std):
    rewards = random_rewards(seed)
    state = [[10 * i + k for k in range(len(turns))] for i, turns in enumerate(rewards)]
    batch = episodes(rewards, group=[0, 0, 0, 1, 1, 2], state=state)
    credit = gigpo(batch, turn_gamma=0.9, step_weight=3.0, divide_by_std=divide_by_std)
    assert credit.advantage.tolist() == grpo(batch, divide_by_std=divide_by_std).advantage.tolist()


def test_an_environment_that_names_no_state_is_an_error():
    with pytest.raises(ConfigError, match=r"gigpo compares turns played in equal states.*state_key"):
        gigpo(episodes(TWO), turn_gamma=1.0, step_weight=1.0, divide_by_std=True)
