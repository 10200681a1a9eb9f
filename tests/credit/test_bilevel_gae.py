"""Bi-level GAE by hand: from turn to turn, then from a turn's last token to its first."""

import pytest

from credit_by_hand import episodes, random_rewards, random_values
from turnwise.credit.bilevel_gae import bilevel_gae
from turnwise.credit.gae import gae
from turnwise.errors import ConfigError

ONES = {"gamma": 1.0, "lam": 1.0, "turn_gamma": 1.0, "turn_lam": 1.0}


def test_the_last_token_has_the_turns_advantage_and_hands_it_down():
    """Turns: δ₁ = 1 − .6 = .4, δ₀ = .5 + .7·.6 − .5 = .42, A₀ = .42 + .35·.4 = .56.
    Tokens: the first of turn 0 has .9·.5 − .4 + .72·.56."""
    batch = episodes([[[0.0, 0.5], [1.0]]], value=[[[0.4, 0.5], [0.6]]])
    credit = bilevel_gae(batch, gamma=0.9, lam=0.8, turn_gamma=0.7, turn_lam=0.5, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.4532, 0.56, 0.4])
    assert credit.value_target.tolist() == pytest.approx([0.8532, 1.06, 1.0])
    assert credit.value_mask is None


def test_truncation_bootstraps_and_termination_does_not():
    """At the end: 1 + .5·2 − .25 for the trajectory that a limit cut off, 1 − .25 for the other; before it γλ = .5."""
    batch = episodes(
        [[[0.0, 1.0]], [[0.0, 1.0]]],
        value=[[[0.0, 0.25]]] * 2,
        truncated=[True, False],
        final_value=[2.0, 2.0],
    )
    credit = bilevel_gae(batch, gamma=1.0, lam=0.5, turn_gamma=0.5, turn_lam=1.0, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.25 + 0.5 * 1.75, 1.75, 0.25 + 0.5 * 0.75, 0.75])


def test_a_trajectory_that_earned_nothing_is_one_like_any_other():
    """With nothing to come, each token is worth less than the critic hoped by just what it hoped."""
    batch = episodes([[[0.0, 0.0], [0.0]], [[0.0]]], value=[[[0.2, 0.3], [0.1]], [[0.7]]])
    assert bilevel_gae(batch, **ONES, whiten=False).advantage.tolist() == pytest.approx([-0.2, -0.3, -0.1, -0.7])


def test_a_turn_that_earned_nothing_is_still_a_turn():
    """γ' = .5 twice: the reward 4 of the third turn is worth 1 at the first, though the second earned nothing."""
    batch = episodes([[[0.0], [0.0], [4.0]]], value=[[[0.0], [0.0], [0.0]]])
    credit = bilevel_gae(batch, gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=1.0, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([1.0, 2.0, 4.0])


def test_what_is_paid_inside_a_turn_counts_for_the_turn_before():
    """−.4 on the first token of turn 1 reaches turn 0 with γ' = .5: 0 + .5·(−.4 + 1)."""
    batch = episodes([[[0.0], [-0.4, 1.0]]], value=[[[0.0], [0.0, 0.0]]])
    credit = bilevel_gae(batch, gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=1.0, whiten=False)
    assert credit.advantage.tolist() == pytest.approx([0.3, 0.6, 1.0])


@pytest.mark.parametrize("seed", range(5))
def test_without_decay_it_is_token_level_gae(seed):
    rewards = random_rewards(seed, on_every_token=True)
    batch = episodes(
        rewards, value=random_values(seed, rewards), truncated=[True, False] * 3, final_value=[1.0, 2.0, 3.0] * 2
    )
    two_levels, one = bilevel_gae(batch, **ONES, whiten=False), gae(batch, gamma=1.0, lam=1.0, whiten=False)
    assert two_levels.advantage.tolist() == pytest.approx(one.advantage.tolist())
    assert two_levels.value_target.tolist() == pytest.approx(one.value_target.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_one_turn_is_token_level_gae(seed):
    rewards = [[turns[0]] for turns in random_rewards(seed, on_every_token=True)]
    batch = episodes(rewards, value=random_values(seed, rewards))
    two_levels = bilevel_gae(batch, gamma=0.9, lam=0.6, turn_gamma=0.3, turn_lam=0.2, whiten=True)
    one = gae(batch, gamma=0.9, lam=0.6, whiten=True)
    assert two_levels.advantage.tolist() == pytest.approx(one.advantage.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_turns_of_one_token_are_gae_with_the_turns_decay(seed):
    rewards = [[[tokens[-1]] for tokens in turns] for turns in random_rewards(seed)]
    batch = episodes(
        rewards, value=random_values(seed, rewards), truncated=[False, True] * 3, final_value=[1.0, -1.0] * 3
    )
    two_levels = bilevel_gae(batch, gamma=0.1, lam=0.2, turn_gamma=0.9, turn_lam=0.6, whiten=False)
    one = gae(batch, gamma=0.9, lam=0.6, whiten=False)
    assert two_levels.advantage.tolist() == pytest.approx(one.advantage.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_lengthening_a_turn_changes_no_last_tokens_advantage(seed):
    """The turn level sees last tokens alone, so no γ or λ inside a turn can decay what passes between turns."""
    rewards = random_rewards(seed)
    values = random_values(seed, rewards)
    longer = [[[0.0, 0.0, *tokens] for tokens in turns] for turns in rewards]
    padded = [[[3.0, -3.0, *tokens] for tokens in turns] for turns in values]
    settings = {"gamma": 0.5, "lam": 0.5, "turn_gamma": 0.9, "turn_lam": 0.8, "whiten": False}
    short = bilevel_gae(episodes(rewards, value=values), **settings).advantage.tolist()
    long = bilevel_gae(episodes(longer, value=padded), **settings).advantage.tolist()
    assert _lasts(short, rewards) == pytest.approx(_lasts(long, longer))


def test_whitening_touches_advantages_and_not_targets():
    batch = episodes([[[0.0]], [[1.0]], [[2.0]]], value=[[[0.0]]] * 3)
    credit = bilevel_gae(batch, **ONES, whiten=True)
    assert credit.advantage.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert credit.value_target.tolist() == pytest.approx([0.0, 1.0, 2.0])


def test_a_missing_critic_is_an_error():
    with pytest.raises(ConfigError, match="bilevel-gae needs a critic"):
        bilevel_gae(episodes([[[1.0]]]), **ONES, whiten=False)


def _lasts(flat, rewards):
    values, lasts = iter(flat), []
    for tokens in (tokens for turns in rewards for tokens in turns):
        lasts.append([next(values) for _ in tokens][-1])
    return lasts
