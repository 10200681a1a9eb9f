"""Per-token inputs of the losses (old logprobs, advantages, value targets), computed before an update's first step.

Invariant: they are fixed by the weights as they were when the update began, whatever its epochs then change.
Shapes: L tokens of all rows, N credited tokens.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

import torch
from torch import nn

from turnwise.compute.device import send
from turnwise.credit.base import Credit
from turnwise.credit.estimate import estimate
from turnwise.credit.settings import CreditSettings
from turnwise.credit.statistics import compare_with_group
from turnwise.learner.batch import Batch, value_before_token
from turnwise.learner.forward_runner import HALF, ForwardRunner
from turnwise.losses.kl import kl_error, kl_estimate
from turnwise.losses.masked_is import masked_weights
from turnwise.losses.settings import LossSettings, Ratio
from turnwise.losses.tis import tis_weights
from turnwise.models.critic import Critic
from turnwise.models.reference import Reference

OldPolicy: TypeAlias = Literal["sampler", "learner", "current"]
"""Whose logprobs are π_old: `learner`: from a forward pass before the update; `current`: from the forward pass of the
update's only step, whose weights are still those."""
_FLOAT32_ROUNDINGS = 64
_HALF_ROUNDINGS = 8
"""Rounding error of a logprob, in machine epsilons, with a margin of about four: of two ways to compute one through 30
layers, the difference has an rms of 17 in float32, and of 2 in bfloat16, whose sums are kept in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One value per token, [L] for a batch."""

    sampled: torch.Tensor
    """Bool: the agent sampled it."""
    advantage: torch.Tensor
    old_logprob: torch.Tensor | None = None
    """The sampler's, or the policy's own before the update, as it always is on context tokens; None: that of the
    forward pass at hand."""
    reference_logprob: torch.Tensor | None = None
    old_value: torch.Tensor | None = None
    """Critic value of the state before the token, before the update."""
    value_target: torch.Tensor | None = None
    value_mask: torch.Tensor | None = None
    """Bool: the tokens in the value loss, where the estimator reads values at some alone; None: all trained tokens."""
    segment: torch.Tensor | None = None
    """Long: equal within the turn or trajectory whose tokens share one ratio; None: every token has its own."""
    sampler_weight: torch.Tensor | None = None
    """Truncated importance weight of the policy's loss, where the sampler differs from the learner; None: 1."""

    def to(self, device: torch.device) -> "LossInputs":
        return LossInputs(**{name: send(tensor, device) for name, tensor in self._present().items()})

    def at(self, token: torch.Tensor) -> "LossInputs":
        """Of the tokens at these flat indices [m]."""
        return LossInputs(**{name: tensor[token] for name, tensor in self._present().items()})

    def _present(self) -> dict[str, torch.Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def prepare_loss_inputs(
    batch: Batch,
    *,
    model: nn.Module,
    critic: Critic | None,
    reference: Reference | None,
    runner: ForwardRunner,
    credit: CreditSettings,
    loss: LossSettings,
    old_policy: OldPolicy,
) -> tuple[LossInputs, dict[str, float]]:
    """The loss inputs of a batch, and metrics of its credit."""
    kl_in_reward = reference is not None and loss.kl_in == "reward"
    compared = (
        batch.trained | batch.credited if kl_in_reward else batch.trained
    )  # [L]: tokens whose old logprob is read
    old_logprob = batch.logprob  # [L]
    own = _needs_policy_logprob(batch, compared, old_policy)  # [L]
    if own.any():
        old_logprob = torch.where(own, runner.logprobs(model, batch, own), old_logprob)
    sampler_weight, metrics = _correct_sampler(batch, old_logprob, loss)  # [L]
    reference_logprob = None
    reward, reward_error = batch.reward, None  # [L]
    if reference is not None:
        with reference.in_place():
            reference_logprob = runner.logprobs(model, batch, compared)  # [L]
        if kl_in_reward:
            penalty = kl_estimate(old_logprob.double(), reference_logprob.double(), loss.kl_form)  # [L]
            reward = reward - loss.kl_coef * penalty
            error = _logprob_error(old_logprob.double(), runner.coarsest_dtype(model))  # [L]
            reward_error = loss.kl_coef * kl_error(old_logprob, reference_logprob, loss.kl_form, error)
    state_value = None if critic is None else runner.state_values(critic, batch)  # [L]
    tokens = batch.credited_tokens(reward, state_value)
    if reward_error is not None:
        tokens = replace(tokens, reward_error=reward_error[batch.credited])
    result = estimate(tokens, credit)
    old_value = None if state_value is None else value_before_token(state_value)  # [L]
    inputs = LossInputs(
        sampled=batch.action,
        old_logprob=None if old_policy == "current" else old_logprob,
        advantage=batch.spread(result.advantage).float(),
        reference_logprob=reference_logprob,
        old_value=None if old_value is None else old_value.float(),
        value_target=None if result.value_target is None else batch.spread(result.value_target).float(),
        value_mask=None if result.value_mask is None else _over_all_tokens(batch, result.value_mask),
        segment=_segment(batch, loss.ratio),
        sampler_weight=sampler_weight,
    )
    return inputs, metrics | _credit_metrics(batch, result, old_value)


def choose_old_policy(loss: LossSettings, *, dtype: torch.dtype, stale: bool, single_step: bool) -> OldPolicy:
    """Whose logprobs ratios are taken against, where the learner's carry the rounding of `dtype`.

    Stale samples are those of older weights: a ratio against the sampler corrects for their age, so they keep it. Under
    a correction (`tis_cap`, `mis_cap`, `icepop_band`) the sampler's own are what is corrected for. A KL penalty in the
    reward reads the learner's before the update's only step, too.
    """
    by_default = "learner" if loss.corrects_sampler or (dtype in HALF and not stale) else "sampler"
    if (loss.old_logprobs or by_default) == "sampler":
        return "sampler"
    read_before = loss.corrects_sampler or (loss.kl_coef > 0 and loss.kl_in == "reward")
    return "current" if single_step and not read_before else "learner"


def needs_forward(batch: Batch, *, critic: Critic | None, reference: Reference | None, old_policy: OldPolicy) -> bool:
    """Whether the loss inputs of a batch take a forward pass of some model."""
    asked = critic is not None or reference is not None
    return asked or bool(_needs_policy_logprob(batch, batch.trained, old_policy).any())


def _needs_policy_logprob(batch: Batch, compared: torch.Tensor, old_policy: OldPolicy) -> torch.Tensor:
    """The compared tokens [L] whose old logprob must come from the policy itself: context tokens were never sampled."""
    match old_policy:
        case "sampler":
            return compared & ~batch.action
        case "learner":
            return compared
        case "current":
            return torch.zeros_like(compared)


def _logprob_error(logprob: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The size of the rounding error of logprobs [L]; one near 0 is still the difference of two logits."""
    roundings = _HALF_ROUNDINGS if dtype in HALF else _FLOAT32_ROUNDINGS
    return roundings * torch.finfo(dtype).eps * logprob.abs().clamp(min=1)


def _segment(batch: Batch, ratio: Ratio) -> torch.Tensor | None:
    """The turn or trajectory, by number, whose tokens share one ratio [L]."""
    if ratio == "token":
        return None
    if ratio == "trajectory":
        return batch.trajectory
    return batch.trajectory * len(batch.ids) + batch.turn


def _over_all_tokens(batch: Batch, value_mask: torch.Tensor) -> torch.Tensor:
    """A mask over credited tokens [N] as one over all tokens [L]; off where a token is not credited."""
    mask = torch.zeros_like(batch.credited)  # [L]
    mask[batch.credited] = value_mask
    return mask


def _correct_sampler(
    batch: Batch, logprob: torch.Tensor, loss: LossSettings
) -> tuple[torch.Tensor | None, dict[str, float]]:
    """Importance weights [L], truncated or masked, with their metrics; 1 on tokens that were not sampled."""
    read = batch.trained & batch.action  # [L]
    if loss.kept_band is not None:
        weight, masked = masked_weights(logprob, batch.logprob, loss.kept_band)  # [L] each
        metrics = {
            "policy/is_weight": float(weight[read].mean()),
            "policy/is_masked": float(masked[read].float().mean()),
        }
    elif loss.tis_cap is not None:
        weight = tis_weights(logprob, batch.logprob, loss.tis_cap)  # [L]
        capped = (weight[read] >= loss.tis_cap).float()
        metrics = {"policy/tis_weight": float(weight[read].mean()), "policy/tis_capped": float(capped.mean())}
    else:
        return None, {}
    return torch.where(batch.action, weight, torch.ones_like(weight)), metrics


def _credit_metrics(batch: Batch, credit: Credit, old_value: torch.Tensor | None) -> dict[str, float]:
    metrics = {
        "credit/advantage_mean": float(credit.advantage.mean()),
        "credit/advantage_std": float(credit.advantage.std(correction=0)),
    }
    # Rewards before any KL penalty: two equal returns teach nothing either way.
    when = batch.reward.nonzero().flatten()
    paid = batch.reward.new_zeros(len(batch.group)).index_add(0, batch.trajectory[when], batch.reward[when])  # [T]
    peers = compare_with_group(paid, batch.group)
    share_of_group = peers.size.reciprocal()  # [T]
    several = peers.size > 1  # [T]
    if several.any():
        flat = share_of_group[several & (peers.std == 0)].sum()
        metrics["credit/zero_variance_groups"] = float(flat / share_of_group[several].sum())
    if old_value is not None and credit.value_target is not None:
        read = slice(None) if credit.value_mask is None else credit.value_mask  # [N]
        value, target = old_value[batch.credited][read], credit.value_target[read]
        unexplained = (target - value).var(correction=0)
        spread = target.var(correction=0)
        metrics["critic/explained_variance"] = float(1 - unexplained / spread) if spread > 0 else 0.0
        metrics["critic/value_mean"] = float(value.mean())
    return metrics
