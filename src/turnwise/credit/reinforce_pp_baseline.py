"""REINFORCE++-baseline: the group's mean is the baseline, and the batch, not the group, sets the scale.

    D = R − mean(R_group)                A = (D − mean(D)) / std(D)        for every token of the trajectory

Source: Hu et al., arXiv 2501.03262. The batch's mean and std run over all credited tokens.
Rewards: R is the sum of all the trajectory earned, process and outcome rewards together; γ does not enter.
Departures: the std is the sample's (n − 1) and has no epsilon; a batch of equal returns gives exactly 0. Group means
count trajectories; a group of one has D = 0.
Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.statistics import compare_with_group, normalise


def reinforce_pp_baseline(tokens: TokenBatch) -> Credit:
    """Each trajectory's return less its group's mean, against the batch's."""
    peers = compare_with_group(tokens.returns(), tokens.group, tokens.returns_error())
    return Credit(advantage=normalise(peers.deviation[tokens.trajectory]))
