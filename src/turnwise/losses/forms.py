"""Runs the form of the policy loss a recipe names: ours, or a function of the user's own with the same contract.

    form(logprob, old_logprob, advantage, *, clip_low, ...) -> PolicyLoss

Its keyword parameters are settings of `loss`, or its own, from `loss.args`; one named `segment` gets the number [M] of
the turn or trajectory that shares a ratio (None where every token has its own). Shapes: M trained tokens.
"""

import torch

from turnwise.errors import ConfigError
from turnwise.losses.policy import PolicyLoss
from turnwise.losses.settings import FORM, KNOWN, LossSettings
from turnwise.plugins import find_function


def surrogate_loss(
    logprob: torch.Tensor,
    old_logprob: torch.Tensor,
    advantage: torch.Tensor,
    segment: torch.Tensor | None,
    settings: LossSettings,
) -> PolicyLoss:
    """The policy loss per token [M], by the form that `settings` names."""
    form = find_function(FORM, settings.form, KNOWN)
    arguments = settings.arguments()
    if settings.info.takes_segment:
        arguments["segment"] = segment
    result = form(logprob, old_logprob, advantage, **arguments)
    if not isinstance(result, PolicyLoss):
        raise ConfigError(
            f"loss.form: {settings.form} returned {type(result).__name__}: return "
            "turnwise.losses.policy.PolicyLoss(loss=..., clipped=...)"
        )
    if result.loss.shape != logprob.shape or result.clipped.shape != logprob.shape:
        raise ConfigError(f"loss.form: {settings.form} must return one loss and one clipped flag per token")
    return result
