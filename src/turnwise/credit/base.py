"""What every estimator takes and gives.

Invariant: masks are applied before an estimator runs, by choosing which tokens it sees; so no estimator knows
of masks, and none can forget one. Shapes: N credited tokens in order of time, trajectory after trajectory;
T trajectories.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

Estimator: TypeAlias = Callable[..., "Credit"]
"""`estimator(tokens, *, gamma, ...)`: keyword parameters are settings of `credit`, or its own, from `credit.args`."""
E = TypeVar("E", bound=Estimator)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The credited tokens of a batch of whole trajectories, rows already joined in order of time."""

    reward: torch.Tensor
    """[N] float: the token's reward; a turn's reward is on the last action token of that turn."""
    trajectory: torch.Tensor
    """[N] long: which trajectory the token is of, 0..T-1, never decreasing."""
    turn: torch.Tensor
    """[N] long: which turn of its trajectory, never decreasing within one."""
    group: torch.Tensor
    """[T] long: which group (task) each trajectory is of."""
    truncated: torch.Tensor
    """[T] bool: truncated by a limit of ours, so that its value goes on after the last token."""
    value: torch.Tensor | None = None
    """[N] float: the critic's value of the state before the token; None without a critic."""
    final_value: torch.Tensor | None = None
    """[T] float: the critic's value of the state after the last token; read where `truncated`."""
    state: torch.Tensor | None = None
    """[N] long: the state in which the token's turn was played, by `Turn.state_key`: equal numbers mean equal keys
    within one group, and different groups never share a number. −1: that state has no name; None: no state has one."""
    reward_error: torch.Tensor | None = None
    """[N] float: the size of the reward's rounding error, where a KL penalty of rounded logprobs is part of it;
    independent from token to token, so that errors of a sum add up as squares do. None: rewards are exact."""

    def returns(self) -> torch.Tensor:
        """[T]: the sum of each trajectory's process and outcome rewards."""
        total = self.reward.new_zeros(len(self.group))  # [T]
        return total.index_add(0, self.trajectory, self.reward)

    def returns_error(self) -> torch.Tensor | None:
        """[T]: the rounding error of `returns`; None where they are exact."""
        if self.reward_error is None:
            return None
        total = self.reward_error.new_zeros(len(self.group))  # [T]
        return total.index_add(0, self.trajectory, self.reward_error.square()).sqrt()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What an estimator returns."""

    advantage: torch.Tensor
    """[N] float."""
    value_target: torch.Tensor | None = None
    """[N] float: what the critic is trained towards; None from estimators without one."""
    value_mask: torch.Tensor | None = None
    """[N] bool: the tokens whose value is read, and so the only ones the critic is trained on; None: all of them."""


def estimator(*, needs_critic: bool = False, compares_groups: bool = False) -> Callable[[E], E]:
    """Declares what an estimator of one's own needs; one that needs neither can do without.

    @estimator(compares_groups=True)
    def half(tokens: TokenBatch, *, share: float = 0.5) -> Credit:
        return Credit(advantage=share * tokens.reward)
    """

    def declare(function: E) -> E:
        function.needs_critic = needs_critic  # type: ignore[attr-defined]  # `CreditSettings.info` reads both
        function.compares_groups = compares_groups  # type: ignore[attr-defined]
        return function

    return declare
