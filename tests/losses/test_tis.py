"""The weight of a token whose sampler was more, or less, sure of it than the learner."""

import math

import pytest
import torch

from turnwise.losses.tis import tis_weights


def test_the_ratio_is_the_weight_up_to_the_cap():
    """.5/.25 = 2, .1/.2 = ½, .9/.1 = 9 held at 3, and agreement is 1."""
    learner = torch.tensor([0.5, 0.1, 0.9, 0.4], dtype=torch.double).log()
    sampler = torch.tensor([0.25, 0.2, 0.1, 0.4], dtype=torch.double).log()
    assert tis_weights(learner, sampler, 3.0).tolist() == pytest.approx([2.0, 0.5, 3.0, 1.0])


def test_uncapped_weights_make_the_samplers_draws_the_learners():
    """The mean of anything over the sampler's draws, so weighed, is its mean under the learner."""
    learner = torch.tensor([0.7, 0.2, 0.1], dtype=torch.double)
    sampler = torch.tensor([0.3, 0.3, 0.4], dtype=torch.double)
    score = torch.tensor([1.0, -2.0, 5.0], dtype=torch.double)
    corrected = (sampler * tis_weights(learner.log(), sampler.log(), 1e6) * score).sum()
    assert float(corrected) == pytest.approx(float((learner * score).sum()))


def test_a_token_the_sampler_held_impossible_weighs_no_more_than_the_cap():
    weights = tis_weights(torch.tensor([-1.0, -math.inf]), torch.tensor([-math.inf, -1.0]), 2.0)
    assert weights.tolist() == pytest.approx([2.0, 0.0], abs=1e-8)
