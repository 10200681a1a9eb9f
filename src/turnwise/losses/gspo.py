"""GSPO: the clipped surrogate on one ratio per segment, the geometric mean of its tokens' ratios.

    log s = 1/|y| Σ_{t∈y} (log π_t − log π_old,t)            y: the tokens of one turn, or of one trajectory
    ρ_t = sg[s] · π_t / sg[π_t]                              sg: no gradient flows through it
    loss_t = max(−A_t ρ_t, −A_t clip(ρ_t, 1 − low, 1 + high))

Source: Zheng et al., arXiv 2507.18071, in its GSPO-token form: ρ_t has the value of s, and its gradient is s ∇ log π_t.
So every token is clipped with its segment and credited with its own advantage; where all of a segment have the same
one and weigh the same, the gradient is that of A · s. With `aggregation: trajectory` and segments that are
trajectories it is the paper's loss.
Departures: a turn may be the segment; the dual clip of PPO applies when set; log s is held within ±20. A segment of
one token is PPO's clip. All tokens of a segment must be given at once, that is in one micro-batch.
Shapes: M trained tokens, S segments among them.
"""

import torch

from turnwise.losses.policy import PolicyLoss, bounded_exp, clipped_surrogate


def gspo_loss(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    segment: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> PolicyLoss:
    """Per token [M]; `segment` [M] is equal within a segment and different across, in any order."""
    mean = segment_mean(logprob.detach() - old_logprob, segment)  # [M]
    ratio = bounded_exp(mean) * (logprob - logprob.detach()).exp()  # [M]: the mean's value, the token's gradient
    return clipped_surrogate(ratio, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def segment_mean(values: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    """Each value's [M] segment mean [M]: 1, 3, 5 in segments 7, 7, 2 become 2, 2, 5."""
    _, owner, tokens = torch.unique(segment, return_inverse=True, return_counts=True)  # [M], [S]
    mean: torch.Tensor = values.new_zeros(len(tokens)).index_add(0, owner, values) / tokens  # [S]
    return mean[owner]
