"""The one recursion that estimators share: a discounted sum from each element to the end of its sequence.

Shapes: N elements in order of time, sequence after sequence; S sequences; L elements in the longest.
"""

import torch


def discounted_sum(values: torch.Tensor, sequence: torch.Tensor, decay: float) -> torch.Tensor:
    """y_i = x_i + decay · y_{i+1} within each sequence [N]: 0, 0, 1 with decay .5 becomes .25, .5, 1."""
    if not len(values):
        return values.clone()
    length = torch.bincount(sequence)  # [S]
    first = length.cumsum(0) - length  # [S]
    time = torch.arange(len(values), device=values.device) - first[sequence]  # [N]
    grid = values.new_zeros(int(length.max()), len(length))  # [L, S]
    grid[time, sequence] = values
    for t in range(len(grid) - 2, -1, -1):
        grid[t] += decay * grid[t + 1]
    return grid[time, sequence]  # [N]


def discounted_error(error: torch.Tensor | None, sequence: torch.Tensor, decay: float) -> torch.Tensor | None:
    """The rounding error of `discounted_sum` [N], from independent errors of its values [N]; None where those are."""
    return None if error is None else discounted_sum(error.square(), sequence, decay**2).sqrt()


def following(values: torch.Tensor, sequence: torch.Tensor, after_end: torch.Tensor) -> torch.Tensor:
    """The next value of the same sequence [N], and after its last `after_end` [S]: 1, 2 and then 9 becomes 2, 9."""
    ends = torch.ones_like(sequence, dtype=torch.bool)  # [N]
    ends[:-1] = sequence[1:] != sequence[:-1]
    return torch.where(ends, after_end[sequence], values.roll(-1))  # [N]
