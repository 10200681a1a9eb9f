"""REINFORCE++ and its baseline variant: no critic, and normalisation over the batch, not the group.

    REINFORCE++            G_t = Σ_{k≥t} γ^{k−t} r_k            A_t = (G_t − mean(G)) / std(G)
    REINFORCE++-baseline   D = R − mean(R_group)                A   = (D − mean(D)) / std(D)

Source: Hu et al., arXiv 2501.03262. The batch's mean and std run over all credited tokens.
Rewards: in REINFORCE++ process and outcome rewards enter at the token that earned them and count for the tokens
before; in the baseline variant R is their sum over the trajectory and γ does not enter.
Departures: t counts credited tokens, so a return is never reset nor decayed by what the agent read in between;
the std is the sample's (n − 1) and has no epsilon; a batch without spread gives exactly 0. Group means count
trajectories; a group of one has D = 0.
Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, Episodes
from turnwise.credit.scan import discounted_sum
from turnwise.credit.statistics import compare_with_group, normalise


def reinforce_pp(episodes: Episodes, *, gamma: float) -> Credit:
    """Each token's discounted return-to-go against the batch's."""
    return Credit(advantage=normalise(discounted_sum(episodes.reward, episodes.trajectory, gamma)))


def reinforce_pp_baseline(episodes: Episodes) -> Credit:
    """Each trajectory's return less its group's mean, against the batch's."""
    peers = compare_with_group(episodes.returns(), episodes.group)
    return Credit(advantage=normalise(peers.deviation[episodes.trajectory]))
