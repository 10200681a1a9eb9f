"""REINFORCE leave-one-out: the baseline of a trajectory is the mean return of the others of its task.

    A_i = R_i − 1/(n−1) Σ_{j≠i} R_j  =  n/(n−1) · (R_i − mean(R_group))        for every token of trajectory i

Source: Ahmadian et al., arXiv 2402.14740, after Kool et al. (2019).
Rewards: R is the sum of all the trajectory earned, process and outcome rewards together; γ does not enter.
Departures: a group of one has no others to be its baseline and gives 0. Statistics count trajectories.
Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.statistics import compare_with_group


def rloo(tokens: TokenBatch) -> Credit:
    """One advantage per trajectory, shared by all its tokens."""
    peers = compare_with_group(tokens.returns(), tokens.group, tokens.returns_error())
    return Credit(advantage=peers.leave_one_out()[tokens.trajectory])
