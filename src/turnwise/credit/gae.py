"""Generalised advantage estimation over the tokens of a trajectory.

    δ_t = r_t + γ V(s_{t+1}) − V(s_t)        A_t = δ_t + γλ A_{t+1}        target_t = A_t + V(s_t)

Source: Schulman et al., arXiv 1506.02438. Here t counts *credited* tokens: with the advantage mask on, the token
after the last of one turn is the first the agent samples in the next, whatever it read in between.
Rewards: process and outcome rewards alike enter as r_t, at the token that earned them.
Departures: V after the last token is 0 when the environment ended the episode and the critic's value when a
limit of ours truncated it; `whiten` normalises advantages (never targets) over all credited tokens of the batch.
Shapes: N credited tokens, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.scan import discounted_error, discounted_sum, following
from turnwise.credit.statistics import normalise
from turnwise.credit.values import require_values


def gae(tokens: TokenBatch, *, gamma: float, lam: float, whiten: bool) -> Credit:
    """The token-level estimator of PPO; it needs a critic."""
    value, after_end = require_values(tokens, "gae")  # [N], [T]
    next_value = following(value, tokens.trajectory, after_end)  # [N]
    delta = tokens.reward + gamma * next_value - value  # [N]
    advantage = discounted_sum(delta, tokens.trajectory, gamma * lam)  # [N]
    error = discounted_error(tokens.reward_error, tokens.trajectory, gamma * lam)  # [N]
    return Credit(
        advantage=normalise(advantage, error) if whiten else advantage,
        value_target=advantage + value,
    )
