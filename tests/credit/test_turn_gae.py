"""Turn-level GAE by hand: one value and one advantage per turn, whatever the turn's length."""

import pytest

from credit_by_hand import episodes, per_turn, random_rewards, random_values
from turnwise.credit.gae import gae
from turnwise.credit.turn_gae import turn_gae
from turnwise.errors import ConfigError

ONES = {"turn_gamma": 1.0, "turn_lam": 1.0, "whiten": False}


def test_values_are_those_of_first_tokens_and_decay_is_by_turn():
    """δ₁ = 1 − .6 = .4 and δ₀ = .5 + .9·.6 − .4 = .64, so A₀ = .64 + .45·.4; the value 9 is never read."""
    rewards = [[[0.0, 0.0, 0.5], [0.0, 1.0]]]
    batch = episodes(rewards, value=[[[0.4, 9.0, 9.0], [0.6, 9.0]]])
    credit = turn_gae(batch, turn_gamma=0.9, turn_lam=0.5, whiten=False)
    assert per_turn(credit.advantage, rewards) == [pytest.approx([0.82, 0.4])]
    assert per_turn(credit.value_target, rewards) == [pytest.approx([1.22, 1.0])]
    assert credit.value_mask.tolist() == [True, False, False, True, False]


def test_truncation_bootstraps_and_termination_does_not():
    """The final value 2 enters only what a limit cut off: 1 + .5·2 − .5 against 1 − .5, and back by γλ = .5."""
    rewards = [[[0.0], [1.0]], [[0.0], [1.0]]]
    batch = episodes(rewards, value=[[[0.0], [0.5]]] * 2, truncated=[False, True], final_value=[2.0, 2.0])
    credit = turn_gae(batch, turn_gamma=0.5, turn_lam=1.0, whiten=False)
    assert per_turn(credit.advantage, rewards) == [pytest.approx([0.5, 0.5]), pytest.approx([1.0, 1.5])]


def test_all_that_a_turn_earned_is_its_reward():
    """A penalty on each token and a reward on the last make one sum, and a turn does not see what was paid before."""
    rewards = [[[-0.1, -0.2, 1.0], [-0.3, 0.0]]]
    batch = episodes(rewards, value=[[[0.0] * 3, [0.0] * 2]])
    assert per_turn(turn_gae(batch, **ONES).advantage, rewards) == [pytest.approx([0.4, -0.3])]


def test_a_trajectory_that_earned_nothing_is_still_made_of_turns():
    rewards = [[[0.0, 0.0], [0.0]], [[0.0]]]
    batch = episodes(rewards, value=[[[0.2, 7.0], [0.1]], [[-0.3]]])
    assert per_turn(turn_gae(batch, **ONES).advantage, rewards) == [pytest.approx([-0.2, -0.1]), pytest.approx([0.3])]


def test_a_trajectory_does_not_see_the_next_one_though_both_are_in_turn_zero():
    rewards = [[[1.0]], [[0.0]]]
    batch = episodes(rewards, value=[[[0.0]], [[5.0]]])
    assert per_turn(turn_gae(batch, **ONES).advantage, rewards) == [pytest.approx([1.0]), pytest.approx([-5.0])]


def test_whitening_counts_turns_and_touches_no_target():
    """Advantages 0, 1, 2 by turn, though the last turn has three tokens."""
    rewards = [[[0.0]], [[1.0]], [[0.0, 0.0, 2.0]]]
    batch = episodes(rewards, value=[[[0.0]], [[0.0]], [[0.0] * 3]])
    credit = turn_gae(batch, turn_gamma=1.0, turn_lam=1.0, whiten=True)
    assert per_turn(credit.advantage, rewards) == [[pytest.approx(-1.0)], [pytest.approx(0.0)], [pytest.approx(1.0)]]
    assert per_turn(credit.value_target, rewards) == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_lengthening_a_turn_without_reward_changes_nothing(seed, whiten):
    rewards = random_rewards(seed)
    values = random_values(seed, rewards)
    longer = [[[0.0, *tokens] for tokens in turns] for turns in rewards]
    padded = [[[tokens[0], 9.0, *tokens[1:]] for tokens in turns] for turns in values]
    settings = {"turn_gamma": 1.0, "turn_lam": 1.0, "whiten": whiten}
    short = turn_gae(episodes(rewards, value=values), **settings)
    long = turn_gae(episodes(longer, value=padded), **settings)
    for one, other in zip(per_turn(short.advantage, rewards), per_turn(long.advantage, longer), strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("seed", range(5))
def test_turns_of_one_token_are_token_level_gae(seed):
    rewards = [[[tokens[-1]] for tokens in turns] for turns in random_rewards(seed)]
    batch = episodes(
        rewards,
        value=random_values(seed, rewards),
        truncated=[True, False] * 3,
        final_value=[0.5, 1.0, -2.0, 1.0, 0.1, 1.0],
    )
    by_turn = turn_gae(batch, turn_gamma=0.9, turn_lam=0.7, whiten=True)
    by_token = gae(batch, gamma=0.9, lam=0.7, whiten=True)
    assert by_turn.advantage.tolist() == pytest.approx(by_token.advantage.tolist())
    assert by_turn.value_target.tolist() == pytest.approx(by_token.value_target.tolist())
    assert by_turn.value_mask.all()


def test_a_missing_critic_is_an_error():
    with pytest.raises(ConfigError, match="turn-gae needs a critic"):
        turn_gae(episodes([[[1.0]]]), **ONES)
