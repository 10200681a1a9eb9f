"""The two comparisons estimators make: with the group's other members, and with the whole batch.

Invariant: what differs by rounding alone does not differ. Where everything is equal the result is exactly zero,
so that an optimizer which rescales gradients never amplifies noise into a step.
Shapes: T members of groups (trajectories, or turns in one state), G groups, N values of any kind.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Each member's return beside those of its group; a member counts once, however many tokens it has."""

    deviation: torch.Tensor
    """[T]: the return less the group's mean."""
    std: torch.Tensor
    """[T]: the group's sample standard deviation; zero where the group has one member or equal returns."""
    size: torch.Tensor
    """[T]: the members of the group, of the same dtype as the returns."""

    def standardised(self) -> torch.Tensor:
        """[T]: the deviation in units of the std; zero where there is none."""
        return self.deviation / torch.where(self.std > 0, self.std, torch.ones_like(self.std))

    def leave_one_out(self) -> torch.Tensor:
        """[T]: the return less the mean of the *other* members; zero where there are none."""
        return self.deviation * self.size / (self.size - 1).clamp(min=1)


def compare_with_group(returns: torch.Tensor, group: torch.Tensor) -> Peers:
    """Returns [T] 1, 0, 5 in groups [T] 0, 0, 1 deviate by .5, -.5, 0."""
    _, member_of = torch.unique(group, return_inverse=True)  # [T] in 0..G-1
    groups = int(member_of.max()) + 1 if len(group) else 0
    zeros = returns.new_zeros(groups)  # [G]
    size = zeros.index_add(0, member_of, torch.ones_like(returns))  # [G]
    mean = zeros.index_add(0, member_of, returns) / size  # [G]
    deviation = _without_rounding(returns - mean[member_of], returns)  # [T]
    squares = zeros.index_add(0, member_of, deviation.square())  # [G]
    std = (squares / (size - 1).clamp(min=1)).sqrt()  # [G]
    return Peers(deviation=deviation, std=std[member_of], size=size[member_of])


def normalise(values: torch.Tensor) -> torch.Tensor:
    """Values [N] to mean 0 and sample standard deviation 1; all zero where they do not differ."""
    if len(values) < 2:
        return torch.zeros_like(values)
    deviation = _without_rounding(values - values.mean(), values)  # [N]
    std = (deviation.square().sum() / (len(values) - 1)).sqrt()
    return deviation / torch.where(std > 0, std, torch.ones_like(std))  # [N]


def _without_rounding(deviation: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    tolerance = 64 * torch.finfo(values.dtype).eps * values.abs().clamp(min=1)  # [N]
    return deviation.masked_fill(deviation.abs() <= tolerance, 0)  # NaN stays NaN, to be found
