"""The turns of a batch, for estimators that credit a whole turn at once.

Invariant: a turn is identified by its number, never by where rewards are, so one without reward is still one.
Shapes: N credited tokens, K turns of all trajectories in order of time, T trajectories.
"""

from dataclasses import dataclass

import torch

from turnwise.credit.base import TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The credited tokens, turn by turn; two turns of 2 and 3 tokens have `first` 0, 2 and `last` 1, 4."""

    of_token: torch.Tensor
    """[N] long: which turn, 0..K-1, the token is of."""
    first: torch.Tensor
    """[K] long: its first credited token."""
    last: torch.Tensor
    """[K] long: its last, the action token that carries the turn's reward."""
    trajectory: torch.Tensor
    """[K] long."""
    number: torch.Tensor
    """[K] long: counted from the trajectory's first turn."""
    reward: torch.Tensor
    """[K] float: the sum of its tokens' rewards."""
    reward_error: torch.Tensor | None
    """[K] float: the rounding error of that sum; None where rewards are exact."""

    @classmethod
    def of(cls, tokens: TokenBatch) -> "Turns":
        begins = torch.ones_like(tokens.turn, dtype=torch.bool)  # [N]
        same = (tokens.turn[1:] == tokens.turn[:-1]) & (tokens.trajectory[1:] == tokens.trajectory[:-1])
        begins[1:] = ~same
        of_token = begins.long().cumsum(0) - 1  # [N]
        first = begins.nonzero().flatten()  # [K]
        error = tokens.reward_error  # [N]
        return cls(
            of_token=of_token,
            first=first,
            last=torch.cat([first[1:], first.new_tensor([len(begins)])]) - 1 if len(first) else first,
            trajectory=tokens.trajectory[first],
            number=tokens.turn[first],
            reward=tokens.reward.new_zeros(len(first)).index_add(0, of_token, tokens.reward),
            reward_error=None
            if error is None
            else error.new_zeros(len(first)).index_add(0, of_token, error.square()).sqrt(),
        )
