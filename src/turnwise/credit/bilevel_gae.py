"""Bi-level generalised advantage estimation: credit goes from turn to turn first, then from token to token.

    turns     δ_k = r_k + γ' (p_{k+1} + V(e_{k+1})) − V(e_k)         A'_k = δ_k + γ'λ' A'_{k+1}
    tokens    δ_t = r_t + γ V(s_{t+1}) − V(s_t)                      A_t  = δ_t + γλ A_{t+1}       before the last
              A_{e_k} = A'_k                                        at the last token of turn k
    target_t = A_t + V(s_t)

Source: Wang et al., VAGEN, arXiv 2510.16907, also in RAGEN. e_k is the last token of turn k and V(e_k) the value of
the state before it; γ' and λ' are `turn_gamma` and `turn_lam`; γ and λ act inside a turn alone.
Rewards: r_k is what the turn's last token earned, process and outcome rewards alike; r_t what a token before it earned
(only a KL penalty does), which the turns before see as p_{k+1}, the sum over the next turn. So with γ = λ = γ' = λ' = 1
every A_t is the return from t on less V(s_t), as in token-level GAE.
Which token is a turn's last is the agent's own choice, so with λ' < 1 there is a bias even with an exact critic.
Departures: turns are identified by their number and not by nonzero rewards, so a trajectory without reward is one like
any other; V after the last turn is 0 when the environment ended the episode and the critic's value when a limit
of ours truncated it; `whiten` normalises advantages (never targets) over all credited tokens of the batch.
Shapes: N credited tokens, K turns, T trajectories.
"""

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.scan import discounted_error, discounted_sum, following
from turnwise.credit.statistics import normalise
from turnwise.credit.turns import Turns
from turnwise.credit.values import require_values


def bilevel_gae(
    tokens: TokenBatch, *, gamma: float, lam: float, turn_gamma: float, turn_lam: float, whiten: bool
) -> Credit:
    """Turn-level advantages, propagated within each turn from its last token to its first; it needs a critic."""
    value, after_end = require_values(tokens, "bilevel-gae")  # [N], [T]
    turns = Turns.of(tokens)
    last_reward, last_value = tokens.reward[turns.last], value[turns.last]  # [K]
    on_the_way = turns.reward - last_reward  # [K]: p_k
    next_worth = following(on_the_way + last_value, turns.trajectory, after_end)  # [K]
    turn_delta = last_reward + turn_gamma * next_worth - last_value  # [K]
    turn_advantage = discounted_sum(turn_delta, turns.trajectory, turn_gamma * turn_lam)  # [K]
    delta = tokens.reward + gamma * value.roll(-1) - value  # [N]: the last token of each turn is put right below
    delta = delta.index_copy(0, turns.last, turn_advantage)
    advantage = discounted_sum(delta, turns.of_token, gamma * lam)  # [N]
    error = discounted_error(tokens.reward_error, tokens.trajectory, 1.0)  # [N]: at most, whatever is discounted
    return Credit(
        advantage=normalise(advantage, error) if whiten else advantage,
        value_target=advantage + value,
    )
