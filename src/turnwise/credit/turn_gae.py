"""Generalised advantage estimation over the turns of a trajectory: one value and one advantage per turn.

    δ_k = r_k + γ V_{k+1} − V_k        A_k = δ_k + γλ A_{k+1}        target_k = A_k + V_k

Source: GAE (Schulman et al., arXiv 1506.02438) on the step-level MDP of Agent-R1 (arXiv 2511.14460): a state is what
the agent has read, an action the whole turn it answers with. γ and λ here are `turn_gamma` and `turn_lam`.
V_k is the critic value of the state before the turn's first token; every token of the turn gets A_k.
Rewards: r_k is all that the turn's tokens earned, process and outcome rewards together (and a KL penalty, if any).
Departures: V after the last turn is 0 when the environment ended the episode and the critic's value when a limit
of ours truncated it; the critic is trained on first tokens alone, since no other value is read; `whiten` normalises
advantages (never targets) over turns, so the length of a turn counts nowhere.
Shapes: N credited tokens, K turns, T trajectories.
"""

import torch

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.scan import discounted_error, discounted_sum, following
from turnwise.credit.statistics import normalise
from turnwise.credit.turns import Turns
from turnwise.credit.values import require_values


def turn_gae(tokens: TokenBatch, *, turn_gamma: float, turn_lam: float, whiten: bool) -> Credit:
    """The turn-level estimator of PPO; it needs a critic."""
    value, after_end = require_values(tokens, "turn-gae")  # [N], [T]
    turns = Turns.of(tokens)
    turn_value = value[turns.first]  # [K]
    next_value = following(turn_value, turns.trajectory, after_end)  # [K]
    delta = turns.reward + turn_gamma * next_value - turn_value  # [K]
    advantage = discounted_sum(delta, turns.trajectory, turn_gamma * turn_lam)  # [K]
    error = discounted_error(turns.reward_error, turns.trajectory, turn_gamma * turn_lam)  # [K]
    read = torch.zeros_like(tokens.turn, dtype=torch.bool)  # [N]
    read[turns.first] = True
    return Credit(
        advantage=(normalise(advantage, error) if whiten else advantage)[turns.of_token],
        value_target=(advantage + turn_value)[turns.of_token],
        value_mask=read,
    )
