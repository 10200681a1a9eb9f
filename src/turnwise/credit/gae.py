"""Generalised advantage estimation over the tokens of a trajectory.

    δ_t = r_t + γ V(s_{t+1}) − V(s_t)        A_t = δ_t + γλ A_{t+1}        target_t = A_t + V(s_t)

Source: Schulman et al., arXiv 1506.02438. Here t counts *credited* tokens: with the advantage mask on, the token
after the last of one turn is the first the agent samples in the next, whatever it read in between.
Rewards: process and outcome rewards alike enter as r_t, at the token that earned them.
Departures: V after the last token is 0 when the environment ended the episode and the critic's own word when a
limit of ours cut it off; `whiten` normalises advantages (never targets) over all credited tokens of the batch.
Shapes: N credited tokens, T trajectories.
"""

import torch

from turnwise.credit.base import Credit, Episodes
from turnwise.credit.scan import discounted_sum
from turnwise.credit.statistics import normalise
from turnwise.errors import ConfigError


def gae(episodes: Episodes, *, gamma: float, lam: float, whiten: bool) -> Credit:
    """The token-level estimator of PPO; it needs a critic."""
    value, final_value = episodes.value, episodes.final_value
    if value is None or final_value is None:
        raise ConfigError("credit.estimator: gae needs a critic's values, and there are none; use one without a critic")
    trajectory = episodes.trajectory  # [N]
    after_end = torch.where(episodes.truncated, final_value, torch.zeros_like(final_value))  # [T]
    ends = torch.ones_like(trajectory, dtype=torch.bool)  # [N]
    ends[:-1] = trajectory[1:] != trajectory[:-1]
    next_value = torch.where(ends, after_end[trajectory], value.roll(-1))  # [N]
    delta = episodes.reward + gamma * next_value - value  # [N]
    advantage = discounted_sum(delta, trajectory, gamma * lam)  # [N]
    return Credit(
        advantage=normalise(advantage) if whiten else advantage,
        value_target=advantage + value,
    )
