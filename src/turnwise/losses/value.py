"""The critic's regression onto value targets, clipped around its old value if `value_clip` is set.

    loss = ½ max((V − target)², (clip(V, V_old − c, V_old + c) − target)²)

Source: the PPO2 baseline implementation (Dhariwal et al., 2017). Shapes: M trained tokens.
"""

import torch


def value_loss(
    value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, *, clip: float | None
) -> torch.Tensor:
    """Per token [M]; weigh with `token_weights` and sum."""
    loss = 0.5 * (value - target).square()  # [M]
    if clip is None:
        return loss
    near = old_value + (value - old_value).clamp(-clip, clip)  # [M]
    return torch.maximum(loss, 0.5 * (near - target).square())
