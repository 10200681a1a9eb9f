"""The one recursion that estimators share: a discounted sum from each token to the end of its trajectory.

Shapes: N tokens in order of time, trajectory after trajectory; T trajectories; L tokens in the longest.
"""

import torch


def discounted_sum(values: torch.Tensor, trajectory: torch.Tensor, decay: float) -> torch.Tensor:
    """y_i = x_i + decay · y_{i+1} within each trajectory [N]: 0, 0, 1 with decay .5 becomes .25, .5, 1."""
    if not len(values):
        return values.clone()
    length = torch.bincount(trajectory)  # [T]
    first = length.cumsum(0) - length  # [T]
    time = torch.arange(len(values), device=values.device) - first[trajectory]  # [N]
    grid = values.new_zeros(int(length.max()), len(length))  # [L, T]
    grid[time, trajectory] = values
    for t in range(len(grid) - 2, -1, -1):
        grid[t] += decay * grid[t + 1]
    return grid[time, trajectory]  # [N]
