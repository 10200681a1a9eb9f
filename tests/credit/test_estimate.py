"""The choice of an estimator: what is unknown, lacking or broken is an error, never a zero."""

import pytest
import torch
from pydantic import ValidationError

from turnwise.credit.base import Episodes
from turnwise.credit.estimate import CreditSettings, estimate
from turnwise.errors import ConfigError, TurnwiseError


def _two(first=1.0, value=None):
    return Episodes(
        reward=torch.tensor([first, 0.0], dtype=torch.double),
        trajectory=torch.tensor([0, 1]),
        turn=torch.tensor([0, 0]),
        group=torch.tensor([0, 0]),
        truncated=torch.tensor([False, False]),
        value=value,
        final_value=value,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gae", [0.5**0.5, -(0.5**0.5)]),
        ("grpo", [0.5**0.5, -(0.5**0.5)]),
        ("rloo", [1.0, -1.0]),
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


def test_an_unknown_estimator_names_the_known_ones():
    with pytest.raises(ValidationError, match="reinforce"):
        CreditSettings(estimator="grop")
    with pytest.raises(ConfigError, match="'grop' is not an estimator; known are gae, grpo, rloo, reinforce"):
        estimate(_two(), CreditSettings.model_construct(estimator="grop"))


def test_gae_without_a_critic_is_an_error():
    with pytest.raises(ConfigError, match="needs a critic"):
        estimate(_two(), CreditSettings(estimator="gae"))


def test_a_diverged_value_is_an_error():
    with pytest.raises(TurnwiseError, match="diverged"):
        estimate(_two(first=float("nan")), CreditSettings(estimator="rloo"))
