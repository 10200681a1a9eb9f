"""The losses put together, per token, from the networks' current outputs and the loss inputs.

Invariant: pure functions of flat tensors; a loss is summed with `Batch.weights`, and so is every measure.
Shapes: m trained tokens of a micro-batch.
"""

import torch

from turnwise.compute.score import Scores
from turnwise.learner.loss_inputs import LossInputs
from turnwise.losses.forms import surrogate_loss
from turnwise.losses.kl import kl_estimate
from turnwise.losses.settings import LossSettings
from turnwise.losses.value import value_loss


def policy_objective(
    scores: Scores, inputs: LossInputs, settings: LossSettings
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The policy's loss [m], and measures [m] by metric name."""
    assert scores.entropy is not None
    old_logprob = scores.logprob.detach() if inputs.old_logprob is None else inputs.old_logprob  # [m]
    surrogate = surrogate_loss(scores.logprob, old_logprob, inputs.advantage, inputs.segment, settings)
    corrected = surrogate.loss if inputs.sampler_weight is None else inputs.sampler_weight * surrogate.loss  # [m]
    loss = corrected
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * scores.entropy
    if inputs.reference_logprob is not None and settings.kl_in == "loss":
        loss = loss + settings.kl_coef * kl_estimate(scores.logprob, inputs.reference_logprob, settings.kl_form)
    measures = {
        "policy/loss": loss.detach(),
        "policy/surrogate_loss": corrected.detach(),
        "policy/entropy": scores.entropy.detach(),
        "policy/clip_fraction": surrogate.clipped.float(),
        # Before this mini-batch's own update: with one update a step there is nothing to see yet.
        "policy/approx_kl": kl_estimate(old_logprob, scores.logprob.detach(), "k3"),
    }
    if inputs.reference_logprob is not None:
        measures["policy/kl_to_reference"] = kl_estimate(scores.logprob.detach(), inputs.reference_logprob, "k3")
    return loss, measures


def critic_objective(value: torch.Tensor, inputs: LossInputs, settings: LossSettings) -> torch.Tensor:
    """The critic's loss [m]; weigh it over `inputs.value_mask`, where there is one."""
    assert inputs.old_value is not None
    assert inputs.value_target is not None
    return value_loss(value, inputs.old_value, inputs.value_target, clip=settings.value_clip)
