"""Critic values, for estimators that need them.

Invariant: the value after a terminated episode is 0 and after a truncated one the critic's, in every estimator alike.
Shapes: N credited tokens, T trajectories.
"""

import torch

from turnwise.credit.base import TokenBatch
from turnwise.errors import ConfigError


def require_values(tokens: TokenBatch, estimator: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The value [N] of the state before each token, and of the state after each trajectory [T]."""
    value, final_value = tokens.value, tokens.final_value
    if value is None or final_value is None:
        raise ConfigError(
            f"credit.estimator: {estimator} needs a critic's values, and there are none; use one without a critic"
        )
    return value, torch.where(tokens.truncated, final_value, torch.zeros_like(final_value))
