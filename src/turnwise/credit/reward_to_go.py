"""Reward-to-go per turn, with the others of the group as the baseline: REINFORCE that knows when a reward was paid.

    G_{i,k} = Σ_{l≥k} γ^{l−k} r_{i,l}        A_{i,k} = G_{i,k} − mean_{j≠i, j reached turn k} G_{j,k}

Source: REINFORCE with reward-to-go (Williams, 1992; Sutton et al., 2000); the leave-one-out baseline of RLOO (Kool et
al., 2019), taken turn by turn. γ here is `turn_gamma`; every token of a turn gets A_{i,k}.
A baseline from all who reached turn k, oneself included, as in MT-GRPO, is biased when the policy decides when to stop;
this one depends on nothing that trajectory i did. So with γ = 1 the gradient is unbiased.
Rewards: r_{i,l} is all that turn l's tokens earned, process and outcome rewards together; a turn is credited with what
came at it or after, never with what was paid before.
Departures: where no other trajectory reached turn k the baseline is 0, which is what the others earned from there on; a
group of one is plain REINFORCE. What differs from its baseline by rounding alone gives exactly 0. A truncated
trajectory's return is what it earned until then: no bootstrap.
Shapes: N credited tokens, K turns, T trajectories.
"""

import torch

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.scan import discounted_error, discounted_sum
from turnwise.credit.statistics import compare_with_group
from turnwise.credit.turns import Turns


def reward_to_go(tokens: TokenBatch, *, turn_gamma: float) -> Credit:
    """One advantage per turn, shared by all its tokens."""
    turns = Turns.of(tokens)
    to_go = discounted_sum(turns.reward, turns.trajectory, turn_gamma)  # [K]
    group_and_turn = torch.stack([tokens.group[turns.trajectory], turns.number])  # [2, K]
    _, peer_group = torch.unique(group_and_turn, dim=1, return_inverse=True)  # [K]
    error = discounted_error(turns.reward_error, turns.trajectory, turn_gamma)  # [K]
    peers = compare_with_group(to_go, peer_group, error)
    advantage = torch.where(peers.size > 1, peers.leave_one_out(), to_go)  # [K]
    return Credit(advantage=advantage[turns.of_token])
