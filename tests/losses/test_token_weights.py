"""The weights of tokens: a token each or a trajectory each, however rows and micro-batches fall."""

import pytest
import torch

from turnwise.losses.aggregate import token_weights


def test_token_mode_weighs_every_token_alike():
    assert token_weights(torch.tensor([0, 0, 0, 7]), "token").tolist() == pytest.approx([0.25] * 4)


def test_trajectory_mode_weighs_every_trajectory_alike_even_in_pieces():
    """Trajectory 4 fills two rows, with another trajectory between them in the batch."""
    weights = token_weights(torch.tensor([4, 4, 9, 4, 4]), "trajectory")
    assert weights.tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 2, 1 / 8, 1 / 8])
