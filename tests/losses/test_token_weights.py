"""The weights of tokens: by token, by trajectory or by a fixed length, however rows and micro-batches fall."""

import pytest
import torch

from turnwise.errors import ConfigError
from turnwise.losses.aggregate import token_weights


def test_token_mode_weighs_every_token_alike():
    assert token_weights(torch.tensor([0, 0, 0, 7]), "token").tolist() == pytest.approx([0.25] * 4)


def test_trajectory_mode_weighs_every_trajectory_alike_even_in_pieces():
    """Trajectory 4 fills two rows, with another trajectory between them in the batch."""
    weights = token_weights(torch.tensor([4, 4, 9, 4, 4]), "trajectory")
    assert weights.tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 2, 1 / 8, 1 / 8])


def test_fixed_mode_knows_no_length_but_its_own():
    """Two trajectories and a length of 4: 1/8 for every token, however many there are."""
    assert token_weights(torch.tensor([0, 0, 0, 7]), "fixed", fixed_length=4).tolist() == pytest.approx([1 / 8] * 4)
    longer = token_weights(torch.tensor([0] * 30 + [7]), "fixed", fixed_length=4)
    assert longer.tolist() == pytest.approx([1 / 8] * 31)


def test_fixed_mode_counts_a_trajectory_once_though_it_fills_two_rows():
    weights = token_weights(torch.tensor([4, 4, 9, 4, 4]), "fixed", fixed_length=5)
    assert weights.tolist() == pytest.approx([0.1] * 5)


def test_fixed_mode_without_a_length_is_an_error():
    with pytest.raises(ConfigError, match=r"set loss\.fixed_length"):
        token_weights(torch.tensor([0]), "fixed")
