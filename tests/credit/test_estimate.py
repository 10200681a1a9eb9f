"""The choice of an estimator: what is unknown, lacking or broken is an error, never a zero."""

import pytest
import torch
from pydantic import ValidationError

from turnwise.credit.base import TokenBatch
from turnwise.credit.estimate import CreditSettings, estimate
from turnwise.errors import ConfigError, TurnwiseError


def _two(first=1.0, value=None):
    return TokenBatch(
        reward=torch.tensor([first, 0.0], dtype=torch.double),
        trajectory=torch.tensor([0, 1]),
        turn=torch.tensor([0, 0]),
        group=torch.tensor([0, 0]),
        truncated=torch.tensor([False, False]),
        value=value,
        final_value=value,
        state=torch.tensor([0, 0]),
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gae", [0.5**0.5, -(0.5**0.5)]),
        ("turn-gae", [0.5**0.5, -(0.5**0.5)]),
        ("bilevel-gae", [0.5**0.5, -(0.5**0.5)]),
        ("grpo", [0.5**0.5, -(0.5**0.5)]),
        ("dr-grpo", [0.5, -0.5]),
        ("rloo", [1.0, -1.0]),
        ("reward-to-go", [1.0, -1.0]),
        ("gigpo", [2**0.5, -(2**0.5)]),
        ("reinforce++", [0.5**0.5, -(0.5**0.5)]),
        ("reinforce++-baseline", [0.5**0.5, -(0.5**0.5)]),
    ],
)
def test_every_estimator_prefers_the_better_of_two(name, expected):
    settings = CreditSettings(estimator=name)
    value = torch.zeros(2, dtype=torch.double) if settings.needs_critic else None
    assert estimate(_two(value=value), settings).advantage.tolist() == pytest.approx(expected)


def test_settings_reach_their_estimators():
    value = torch.tensor([0.25, 0.25], dtype=torch.double)
    plain = estimate(_two(value=value), CreditSettings(estimator="gae", whiten=False))
    assert plain.advantage.tolist() == pytest.approx([0.75, -0.25])
    difference = estimate(_two(), CreditSettings(estimator="grpo", divide_by_std=False))
    assert difference.advantage.tolist() == pytest.approx([0.5, -0.5])
    weighed = estimate(_two(), CreditSettings(estimator="gigpo", divide_by_std=False, step_weight=3.0))
    assert weighed.advantage.tolist() == pytest.approx([2.0, -2.0])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("turn-gae", [0.5 * 0.5 + 0.5 * 0.25 * 0.5, 0.5, 0.5]),
        ("bilevel-gae", [0.5 * 0.5 + 0.5 * 0.25 * 0.5, 0.2 * 0.5 - 0.5 + 0.2 * 0.9 * 0.5, 0.5]),
        ("reward-to-go", [0.5, 1.0, 1.0]),
        ("gigpo", [-0.25, 0.25, 0.25]),
    ],
)
def test_discounts_between_turns_and_inside_them_are_told_apart(estimator, expected):
    """Turns of one token and of two, both played in one state, with a reward of 1 at the end; values 0, ½, ½."""
    episodes = TokenBatch(
        reward=torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.double),
        trajectory=torch.tensor([0, 0, 0, 1]),
        turn=torch.tensor([0, 1, 1, 0]),
        group=torch.tensor([0, 1]),
        truncated=torch.tensor([False, False]),
        value=torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.double),
        final_value=torch.zeros(2, dtype=torch.double),
        state=torch.tensor([0, 0, 0, 1]),
    )
    settings = CreditSettings(
        estimator=estimator, gamma=0.2, lam=0.9, turn_gamma=0.5, turn_lam=0.25, whiten=False, divide_by_std=False
    )
    assert estimate(episodes, settings).advantage.tolist() == pytest.approx([*expected, 0.0])


def test_turn_gae_cannot_credit_what_was_read():
    with pytest.raises(ValidationError, match="set advantage_mask to true, or use gae"):
        CreditSettings(estimator="turn-gae", advantage_mask=False)


def test_an_unknown_estimator_names_the_known_ones():
    with pytest.raises(ValidationError, match="reinforce"):
        CreditSettings(estimator="grop")
    with pytest.raises(
        ConfigError,
        match=r"'grop' is not an estimator \(did you mean 'grpo'\?\); the built-in ones are: gae, turn-gae, "
        "bilevel-gae, grpo, dr-grpo, rloo, ",
    ):
        estimate(_two(), CreditSettings.model_construct(estimator="grop"))


def test_gae_without_a_critic_is_an_error():
    with pytest.raises(ConfigError, match="needs a critic"):
        estimate(_two(), CreditSettings(estimator="gae"))


def test_a_diverged_value_is_an_error():
    with pytest.raises(TurnwiseError, match="diverged"):
        estimate(_two(first=float("nan")), CreditSettings(estimator="rloo"))
