"""GSPO by hand: a segment's tokens share the value of one ratio and the fate of its clipping."""

import math

import pytest
import torch

from turnwise.losses.gspo import gspo_loss, segment_mean
from turnwise.losses.policy import policy_loss

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}


def _gspo(ratio, advantage, segment, *, dual=None, bounds=BOUNDS):
    logprob = torch.tensor(ratio, dtype=torch.double).log().requires_grad_()
    old, advantage = torch.zeros(len(ratio), dtype=torch.double), torch.tensor(advantage, dtype=torch.double)
    result = gspo_loss(logprob, old, advantage, torch.tensor(segment), **bounds, dual_clip=dual)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprob)
    return result.loss.tolist(), gradient.tolist(), result.clipped.tolist()


def test_a_segment_has_the_geometric_mean_of_its_ratios():
    """√(2·½) = 1 for segment 3, √(1.44·1) = 1.2 for segment 8, whose tokens lie apart."""
    loss, gradient, clipped = _gspo([2.0, 1.44, 0.5, 1.0], [1.0, 1.0, 1.0, 1.0], [3, 8, 3, 8])
    assert loss == pytest.approx([-1.0, -1.2, -1.0, -1.2])
    assert gradient == pytest.approx([-1.0, -1.2, -1.0, -1.2])
    assert clipped == [False] * 4


def test_a_segment_is_clipped_as_a_whole_and_only_on_the_side_it_went_too_far():
    """Both segments have √(4·1) = 2: with A > 0 it has gone far enough, with A < 0 it must come back."""
    loss, gradient, clipped = _gspo([4.0, 1.0, 4.0, 1.0], [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 1])
    assert loss == pytest.approx([-1.28, -1.28, 2.0, 2.0])
    assert gradient == pytest.approx([0.0, 0.0, 2.0, 2.0])
    assert clipped == [True, True, False, False]


def test_the_dual_clip_bounds_a_bad_segment():
    loss, gradient, clipped = _gspo([4.0, 1.0], [-1.0, -1.0], [0, 0], dual=1.5)
    assert loss == pytest.approx([1.5, 1.5])
    assert gradient == pytest.approx([0.0, 0.0])
    assert clipped == [True, True]


def test_tokens_keep_their_own_advantage():
    """One ratio of 1, two advantages: the policy gradient of each token."""
    _, gradient, _ = _gspo([2.0, 0.5], [3.0, -1.0], [0, 0], bounds={"clip_low": 0.9, "clip_high": 9.0})
    assert gradient == pytest.approx([-3.0, 1.0])


def test_an_equal_advantage_gives_the_gradient_of_the_sequence_ratio():
    """Each token of a segment of n weighing 1/n, the loss is −A · s for the s of the paper."""
    generator = torch.Generator().manual_seed(0)
    segment = torch.tensor([0, 0, 0, 1, 1, 2])
    size, advantage = torch.tensor([3, 2, 1]), torch.tensor([1.5, -0.5, 2.0], dtype=torch.double)
    old = torch.randn(6, generator=generator, dtype=torch.double)
    logprob = (old + 0.1 * torch.randn(6, generator=generator, dtype=torch.double)).requires_grad_()
    wide = {"clip_low": 0.9, "clip_high": 9.0, "dual_clip": None}
    tokenwise = (gspo_loss(logprob, old, advantage[segment], segment, **wide).loss / size[segment]).sum()
    whole = -sum(a * (logprob - old)[segment == s].mean().exp() for s, a in enumerate(advantage))
    assert tokenwise.item() == pytest.approx(whole.item())
    ours, theirs = torch.autograd.grad(tokenwise, logprob), torch.autograd.grad(whole, logprob)
    assert ours[0].tolist() == pytest.approx(theirs[0].tolist())


@pytest.mark.parametrize("seed", range(5))
def test_segments_of_one_token_are_the_clip(seed):
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(40, generator=generator, dtype=torch.double)
    logprob = (old + torch.randn(40, generator=generator, dtype=torch.double)).requires_grad_()
    advantage = torch.randn(40, generator=generator, dtype=torch.double)
    segment = torch.randperm(40, generator=generator)
    shared = gspo_loss(logprob, old, advantage, segment, **BOUNDS, dual_clip=3.0)
    single = policy_loss(logprob, old, advantage, **BOUNDS, dual_clip=3.0)
    assert shared.loss.tolist() == pytest.approx(single.loss.tolist())
    assert shared.clipped.tolist() == single.clipped.tolist()
    (ours,), (theirs,) = (torch.autograd.grad(result.loss.sum(), logprob) for result in (shared, single))
    assert ours.tolist() == pytest.approx(theirs.tolist())


def test_an_absurd_segment_stays_finite():
    loss, gradient, _ = _gspo([1e300, 1e300], [0.0, -1.0], [0, 0], dual=3.0)
    assert loss == pytest.approx([0.0, 3.0])
    assert all(map(math.isfinite, gradient))


def test_means_by_segment():
    mean = segment_mean(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([7, 7, 2]))
    assert mean.tolist() == [2.0, 2.0, 5.0]
