"""Dr. GRPO, "GRPO done right": the group's mean is taken off, and nothing is divided.

    A = R − mean(R_group)        for every token of the trajectory

Source: Liu et al., arXiv 2503.20783. Dividing by the group's std favours tasks that are nearly always or nearly never
solved, and dividing by a trajectory's length favours long failures; the paper drops both, so use this together with
`loss.aggregation: fixed`. It is RLOO scaled by (n−1)/n.
Rewards: R is the sum of all the trajectory earned, process and outcome rewards together; γ does not enter.
Departures: a group of one, or one whose returns are equal, gives exactly 0. Statistics count trajectories.
Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.statistics import compare_with_group


def dr_grpo(tokens: TokenBatch) -> Credit:
    """One advantage per trajectory, shared by all its tokens."""
    peers = compare_with_group(tokens.returns(), tokens.group, tokens.returns_error())
    return Credit(advantage=peers.deviation[tokens.trajectory])
