"""The two comparisons estimators make: with the group's other members, and with the whole batch.

Invariant: what differs by rounding alone does not differ. Where everything is equal the result is exactly zero,
so that an optimizer which rescales gradients never amplifies noise into a step.

Rewards are exact, and only double arithmetic rounds their sums. A KL penalty in the reward is not exact: it carries the
rounding of the logprobs it is made of, 1e-6 in float32 and 1e-2 in bfloat16. With equal rewards that error is all that
is left to compare, and dividing it by its own std would make unit advantages of it. So values may come with an `error`,
the size of their rounding, and where all deviate by no more than that, all are zero. Where one deviates by more, there
is a real difference and all count: to leave out those that are near the mean would favour the side that has fewer.
The error is measured against the inputs' precision and not against the values, so without a penalty a difference of
rewards counts, however small.
Shapes: T members of groups (trajectories, or turns in one state), G groups, N values of any kind.
"""

from dataclasses import dataclass

import torch

_ROUNDINGS = 64
"""The rounding error of a sum of rewards, in machine epsilons: what hundreds of additions may add up to."""


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


def compare_with_group(returns: torch.Tensor, group: torch.Tensor, error: torch.Tensor | None = None) -> Peers:
    """Returns [T] 1, 0, 5 in groups [T] 0, 0, 1 deviate by .5, -.5, 0; `error` [T] is their rounding, None: exact."""
    groups, member_of = torch.unique(group, return_inverse=True)  # [G], [T] in 0..G-1
    zeros = returns.new_zeros(len(groups))  # [G]
    size = zeros.index_add(0, member_of, torch.ones_like(returns))  # [G]
    mean = zeros.index_add(0, member_of, returns) / size  # [G]
    deviation = _without_rounding(returns - mean[member_of], returns)  # [T]
    if error is not None:
        of_mean = zeros.index_add(0, member_of, error.square()) / size.square()  # [G]
        beyond = ~(deviation.abs() <= (error.square() + of_mean[member_of]).sqrt())  # [T]; NaN is beyond, to be found
        differs = zeros.index_add(0, member_of, beyond.to(zeros.dtype)) > 0  # [G]
        deviation = deviation.masked_fill(~differs[member_of], 0)
    squares = zeros.index_add(0, member_of, deviation.square())  # [G]
    std = (squares / (size - 1).clamp(min=1)).sqrt()  # [G]
    return Peers(deviation=deviation, std=std[member_of], size=size[member_of])


def normalise(values: torch.Tensor, error: torch.Tensor | None = None) -> torch.Tensor:
    """Values [N] to mean 0 and sample standard deviation 1; all zero where they do not differ beyond their `error`."""
    if len(values) < 2:
        return torch.zeros_like(values)
    deviation = _without_rounding(values - values.mean(), values)  # [N]
    if error is not None and (deviation.abs() <= (error.square() + error.square().mean() / len(values)).sqrt()).all():
        return torch.zeros_like(values)
    std = (deviation.square().sum() / (len(values) - 1)).sqrt()
    return deviation / torch.where(std > 0, std, torch.ones_like(std))  # [N]


def _without_rounding(deviation: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    tolerance = _ROUNDINGS * torch.finfo(values.dtype).eps * values.abs().clamp(min=1)  # [N]
    return deviation.masked_fill(deviation.abs() <= tolerance, 0)  # NaN stays NaN, to be found
