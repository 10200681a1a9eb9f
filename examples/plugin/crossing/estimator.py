"""An estimator by rank: credit is the share of its group that a trajectory beats, less the share that beats it.

    b_i = Σ_{j≠i} sign(R_i − R_j) / (n − 1)        A_i = sign(b_i) |b_i|^power        for every token of trajectory i

Unlike GRPO it does not ask by how much. Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch, estimator


@estimator(compares_groups=True)
def ranked(tokens: TokenBatch, *, power: float = 1.0) -> Credit:
    """`power` is set by `credit.args`; a parameter called `gamma` would get `credit.gamma`."""
    returns = tokens.returns()  # [T]
    peers = tokens.group[:, None] == tokens.group[None, :]  # [T, T]
    wins = ((returns[:, None] - returns[None, :]).sign() * peers).sum(1)  # [T]
    beaten = wins / (peers.sum(1) - 1).clamp(min=1)  # [T]
    advantage = beaten.sign() * beaten.abs() ** power  # [T]
    return Credit(advantage=advantage[tokens.trajectory])
