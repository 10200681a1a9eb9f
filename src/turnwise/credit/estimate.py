"""Runs the estimator a recipe names. Invariant: an estimator that cannot run is an error, never a zero."""

import torch

from turnwise.credit.base import Credit, TokenBatch
from turnwise.credit.settings import ESTIMATOR, KNOWN, CreditSettings
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.plugins import find_function


def estimate(tokens: TokenBatch, settings: CreditSettings) -> Credit:
    """Runs the estimator that `settings` names; its advantages are finite, or this raises."""
    function = find_function(ESTIMATOR, settings.estimator, KNOWN)
    credit = _check_contract(function(tokens, **settings.arguments()), tokens, settings)
    if not torch.isfinite(credit.advantage).all():
        raise TurnwiseError(
            f"credit.estimator: {settings.estimator} gave an advantage that is not finite: the policy or the critic "
            "has diverged; resume from an earlier checkpoint and lower the learning rate"
        )
    return credit


def _check_contract(credit: object, tokens: TokenBatch, settings: CreditSettings) -> Credit:
    """An estimator of the user's own may return anything; ours pass at no cost."""
    name = f"credit.estimator: {settings.estimator}"
    if not isinstance(credit, Credit):
        raise ConfigError(f"{name} returned {type(credit).__name__}: return turnwise.credit.base.Credit(advantage=...)")
    if credit.advantage.shape != tokens.reward.shape:
        raise ConfigError(
            f"{name} returned advantages of shape {list(credit.advantage.shape)} for {len(tokens.reward)} credited "
            "tokens: return one per token"
        )
    if settings.needs_critic and credit.value_target is None:
        raise ConfigError(f"{name} needs a critic, but returned no targets to train it on: set Credit.value_target")
    return credit
