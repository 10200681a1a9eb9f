"""Group-in-group policy optimisation: trajectories are compared within a task, and turns within a state.

    A_{i,k} = A_episode(i) + ω A_step(i, k)
    A_episode = (R_i − mean(R_group)) / std(R_group)                        as in GRPO
    A_step    = (G_{i,k} − mean(G_state)) / std(G_state)                    over the group's turns played in one state
    G_{i,k} = Σ_{l≥k} γ^{l−k} r_{i,l}

Source: Feng et al., GiGPO, arXiv 2505.10978 (ω = 1, γ = .95); γ here is `turn_gamma`, ω is `step_weight`, and two turns
are in one state when the environment's `state_key` says so. With `divide_by_std` off neither part is divided.
Rewards: R is the sum of all the trajectory earned, process and outcome rewards together; r_{i,l} is what turn l earned.
Departures: stds are the sample's (n − 1) and have no epsilon. A state visited once, or whose returns are equal, and a
turn whose state has no name have A_step = 0: where no state repeats, this is GRPO. A trajectory that comes back to a
state counts there once per visit. A truncated trajectory's return is what it earned until then: no bootstrap.
Shapes: N credited tokens, K turns, T trajectories.
"""

import torch

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.scan import discounted_error, discounted_sum
from turnwise.credit.statistics import Peers, compare_with_group
from turnwise.credit.turns import Turns
from turnwise.errors import ConfigError


def gigpo(tokens: TokenBatch, *, turn_gamma: float, step_weight: float, divide_by_std: bool) -> Credit:
    """One advantage per turn, shared by all its tokens; the environment must name its states."""
    if tokens.state is None:
        raise ConfigError(
            "credit.estimator: gigpo compares turns played in equal states, and the environment names none: give it a "
            "state_key, or use grpo"
        )
    turns = Turns.of(tokens)
    to_go = discounted_sum(turns.reward, turns.trajectory, turn_gamma)  # [K]
    error = discounted_error(turns.reward_error, turns.trajectory, turn_gamma)  # [K]
    peers = compare_with_group(tokens.returns(), tokens.group, tokens.returns_error())
    by_episode = _judge(peers, divide_by_std)  # [T]
    state = tokens.state[turns.first]  # [K]
    named = state >= 0  # [K]
    by_step = torch.zeros_like(to_go)  # [K]
    peers = compare_with_group(to_go[named], state[named], None if error is None else error[named])
    by_step[named] = _judge(peers, divide_by_std)
    advantage = by_episode[turns.trajectory] + step_weight * by_step  # [K]
    return Credit(advantage=advantage[turns.of_token])


def _judge(peers: Peers, divide_by_std: bool) -> torch.Tensor:
    return peers.standardised() if divide_by_std else peers.deviation
