"""REINFORCE++: no critic and no group; returns-to-go are normalised over the batch.

    G_t = Σ_{k≥t} γ^{k−t} r_k            A_t = (G_t − mean(G)) / std(G)

Source: Hu et al., arXiv 2501.03262. The batch's mean and std run over all credited tokens.
Rewards: process and outcome rewards enter at the token that earned them and count for the tokens before.
Departures: t counts credited tokens, so a return is never reset nor decayed by what the agent read in between;
the std is the sample's (n − 1) and has no epsilon; a batch of equal returns gives exactly 0.
Shapes: N credited tokens.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.scan import discounted_error, discounted_sum
from turnwise.credit.statistics import normalise


def reinforce_pp(tokens: TokenBatch, *, gamma: float) -> Credit:
    """Each token's discounted return-to-go against the batch's."""
    returns = discounted_sum(tokens.reward, tokens.trajectory, gamma)  # [N]
    return Credit(advantage=normalise(returns, discounted_error(tokens.reward_error, tokens.trajectory, gamma)))
