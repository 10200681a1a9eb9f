"""From groups to new weights: batch, labels, epochs of mini-batches, optimizer steps.

Invariant: an update is a function of the learner's state, the groups and the seed, and nothing else, so a resumed
run equals one that was never stopped. What cannot teach (no trajectory, no spread) is a counted no-op, never NaN.
How rows are laid out (padded or packed, in how many micro-batches, over how many ranks) changes no gradient.
Shapes: L tokens of all rows, B rows padded to W (or B = 1 and rows end to end), m trained tokens of a micro-batch.
"""

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from turnwise.compute.device import on_one_thread, send
from turnwise.compute.layers import Compiled, require_layers
from turnwise.compute.layout import MicroBatch, MicroBatches
from turnwise.compute.score import check_packing, check_scoring, score
from turnwise.credit.settings import CreditSettings
from turnwise.errors import ConfigError, RunError
from turnwise.learner.batch import Batch, PerTurn
from turnwise.learner.forward_runner import Packing, Passes, choose_packing, mode, seeded
from turnwise.learner.loss_inputs import Labels, label, need_passes
from turnwise.learner.objective import critic_objective, policy_objective
from turnwise.learner.optimizer import Optimizer, OptimizerStep
from turnwise.learner.parallel.ranks import ALONE, Ranks
from turnwise.learner.settings import LearnerSettings
from turnwise.losses.settings import LossSettings
from turnwise.models.critic import Critic
from turnwise.models.reference import Reference
from turnwise.seeds import derive_seed
from turnwise.types import Group

if TYPE_CHECKING:
    from turnwise.ledger import Ledger

logger = logging.getLogger(__name__)

_LOSSES = ("policy/loss", "policy/surrogate_loss", "critic/loss")

Measured: TypeAlias = tuple[dict[str, float], OptimizerStep]
"""The metrics of one mini-batch, and what became of its optimizer step."""
Figures: TypeAlias = dict[str, torch.Tensor]
"""Sums over a mini-batch and the like, [] each: on a GPU, not known to the host before they are fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an update did."""

    metrics: dict[str, float]
    """By `area/name`: `{"policy/loss": .02, "policy/entropy": 1.1, ...}`."""
    advantages: PerTurn
    """For every trajectory given, in order, turn by turn; one that was left out has no turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A mini-batch as one rank sees it: its own micro-batches, and weights [L] that are of every rank's."""

    micros: MicroBatches
    weights: torch.Tensor
    """[L] float: what each trained token weighs in the policy's loss."""
    value_weights: torch.Tensor | None
    """[L] float: and in the critic's, which may be taught at some of them alone; None without one."""
    sampler_logprob: torch.Tensor
    """[L] float: zero where nothing was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launched:
    """A step that was launched, and what it measures."""

    sums: Figures
    """This rank's share of sums over the mini-batch, by metric."""
    peaks: Figures
    """The largest that this rank saw, by metric."""
    norm: torch.Tensor
    """[]: of the gradient."""
    weight: torch.Tensor
    """[]: of all trained tokens together."""
    sampled_weight: torch.Tensor
    """[]: of those among them that were sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epochs:
    """All steps of an update, launched: what is known of it on the host is what has yet to be fetched."""

    policy: list[_Launched]
    critic: list[_Launched]
    micros: list[MicroBatch]
    warming_up: bool


class Learner:
    """A policy that learns from groups of trajectories, with its critic, reference and optimizers."""

    def __init__(
        self,
        model: nn.Module,
        *,
        settings: LearnerSettings,
        credit: CreditSettings,
        loss: LossSettings,
        temperature: float,
        total_steps: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        ranks: Ranks = ALONE,
        ledger: "Ledger | None" = None,
    ) -> None:
        """`temperature` is the sampler's; `total_steps` counts updates, for the schedules; a ledger is told of time.

        Every one of several ranks makes a learner of the same model, and updates it with the same groups and seed.
        """
        if temperature <= 0:
            raise ConfigError(f"temperature: {temperature} samples nothing to learn from; set it above 0")
        if loss.kl_coef > 0 and loss.kl_in == "loss" and loss.kl_form == "k1":
            logger.warning("loss.kl_estimator: k1 in the loss has a gradient of zero mean; k2 and k3 hold the policy")
        self.model = model.to(device)
        self.settings, self.credit, self.loss = settings, credit, loss
        self.version = 0
        self._device, self._ranks = device, ranks
        for option in ("compile", "checkpointing"):
            if getattr(settings, option):
                require_layers(model, setting=f"learner.{option}")
        passes = Passes(
            device=device,
            autocast=autocast,
            temperature=temperature,
            token_budget=settings.tokens_per_microbatch,
            ranks=ranks,
            checkpointing=settings.checkpointing,
            ledger=ledger,
        )
        with mode(model, training=False):
            with passes.precision():
                check_scoring(model, device)
                packing = choose_packing(model, device, asked=settings.packing)
            if packing is Packing.MASKED:
                check_packing(model, device, setting="learner.packing")
        self.optimizer = Optimizer(model, settings.optimizer, total_steps=total_steps)
        self.reference = Reference(model) if loss.kl_coef > 0 else None
        self.critic: Critic | None = None
        self.critic_optimizer: Optimizer | None = None
        if credit.needs_critic:
            self.critic = Critic(model)
            self.critic_optimizer = Optimizer(self.critic, settings.critic.optimizer, total_steps=total_steps)
        compiled = None
        if settings.compile:
            # On a CPU, rows are attended to one by one, and checkpoints lie between layers: neither is in one graph.
            whole = device.type == "cuda" and packing is Packing.BY_ROWS and not settings.checkpointing
            compiled = Compiled(*self._modules(), whole_backbones=whole, setting="learner.compile")
        self.passes = replace(passes, packing=packing, compiled=compiled)

    def update(self, groups: Sequence[Group], *, seed: int) -> Update:
        """Learns from groups sampled by this policy (or one not much older), and counts one version up."""
        with self._accounted(), on_one_thread(self._device):
            return self._update(groups, seed)

    def _update(self, groups: Sequence[Group], seed: int) -> Update:
        self._refuse_lonely(groups)
        batch = Batch.of(
            groups,
            advantage_mask=self.credit.advantage_mask,
            action_mask=self.loss.action_mask,
            tails=self.critic is not None,
        )
        self._require_agreement(batch)
        metrics = batch.metrics() | {"optim/lr": self.optimizer.lr(self.version)}
        if not batch.rows:
            self.version += 1
            return Update(metrics=metrics, advantages=batch.by_turn(torch.zeros(0)))
        made = functools.cache(lambda: self._label(batch))
        there = functools.cache(lambda: made()[0].to(self._device))
        if need_passes(batch, critic=self.critic, reference=self.reference, loss=self.loss):
            made()  # by the weights as they are; others are made when first asked for, behind the first forward
        epochs = self._learn(batch, there, seed)
        labels, credited = made()
        advantages = batch.by_turn(labels.advantage)  # a GPU is still learning
        metrics |= credited | self._settle(epochs)
        self.version += 1
        return Update(metrics=metrics, advantages=advantages)

    def _label(self, batch: Batch) -> tuple[Labels, dict[str, float]]:
        return label(
            batch,
            model=self.model,
            critic=self.critic,
            reference=self.reference,
            passes=self.passes,
            credit=self.credit,
            loss=self.loss,
        )

    def _accounted(self) -> AbstractContextManager[None]:
        ledger = self.passes.ledger
        return nullcontext() if ledger is None else ledger.spend("update")

    def _modules(self) -> list[nn.Module]:
        return [module for module in (self.model, self.critic) if module is not None]

    def _learn(self, batch: Batch, labels: Callable[[], Labels], seed: int) -> _Epochs:
        """Epochs of mini-batches, each one step of the policy and one of the critic."""
        warming_up = self.critic is not None and self.version < self.settings.critic.warmup
        epochs = _Epochs(policy=[], critic=[], micros=[], warming_up=warming_up)
        dropout = derive_seed(seed, "dropout", self._ranks.rank)
        with self.passes.running(*self._modules(), training=True), seeded(dropout, self._device):
            for epoch in range(self.settings.epochs):
                for rows in batch.minibatches(self.settings.minibatches, derive_seed(seed, "minibatches", epoch)):
                    part = self._prepare(batch, rows, labels)
                    if not warming_up:
                        epochs.policy.append(self._policy_step(part, labels))
                    if self.critic is not None:
                        epochs.critic.append(self._critic_step(part, labels))
                    epochs.micros.extend(part.micros)
        return epochs

    def _settle(self, epochs: _Epochs) -> dict[str, float]:
        """Waits for all steps, and says in metrics what they did."""
        policy = [self._measure(self.optimizer, step) for step in epochs.policy]
        metrics = self._read(epochs.micros) | _summarise("policy", policy)
        if policy and policy[0][1].outcome != "skipped":
            # Only the first mini-batch meets the weights that sampled it: later ones have been moved by our own steps.
            metrics |= {name: value for name, value in policy[0][0].items() if name.startswith("policy/sampler_gap")}
        if self.critic_optimizer is not None:
            metrics |= _summarise("critic", [self._measure(self.critic_optimizer, step) for step in epochs.critic])
            metrics["critic/lr"] = self.critic_optimizer.lr(self.version)
            metrics["critic/warming_up"] = float(epochs.warming_up)
        return metrics

    def _prepare(self, batch: Batch, rows: Sequence[int], labels: Callable[[], Labels]) -> _Part:
        """This rank's share of a mini-batch, with weights over the whole of it."""
        aggregation, length = self.loss.aggregation, self.loss.fixed_length
        value_weights = None
        if self.critic is not None:
            mask = labels().value_mask
            read = None if mask is None else mask.cpu()  # [L]
            value_weights = send(batch.weights(rows, aggregation, fixed_length=length, among=read), self._device)
        return _Part(
            micros=self.passes.micro_batches(batch, rows=rows, whole_trajectories=self.loss.ratio == "trajectory"),
            weights=send(batch.weights(rows, aggregation, fixed_length=length), self._device),
            value_weights=value_weights,
            sampler_logprob=send(batch.logprob, self._device),
        )

    def _policy_step(self, part: _Part, labels: Callable[[], Labels]) -> _Launched:
        totals: dict[str, torch.Tensor] = {}
        widest = torch.zeros((), device=self._device)
        for micro in (micro.to(self._device) for micro in part.micros):
            with self.passes.precision():
                scores = score(self.model, micro, self.passes.temperature)
            here = labels().at(micro.token)
            loss, measures = policy_objective(scores, here, self.loss)  # [m]
            weight = part.weights[micro.token]  # [m]
            (weight * loss).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            gap = (scores.logprob.detach() - part.sampler_logprob[micro.token]).abs() * here.sampled  # [m]
            widest = torch.maximum(widest, gap.max())
            for name, measure in (measures | {"policy/sampler_gap": gap}).items():
                totals[name] = totals.get(name, 0) + (weight * measure).sum()
        self._ranks.sum_gradients(self.model)
        return _Launched(
            sums=totals,
            peaks={"policy/sampler_gap_max": widest},
            norm=self.optimizer.launch(self.version),
            weight=part.weights.sum(),
            sampled_weight=(part.weights * labels().sampled).sum(),
        )

    def _critic_step(self, part: _Part, labels: Callable[[], Labels]) -> _Launched:
        assert self.critic is not None
        assert self.critic_optimizer is not None
        assert part.value_weights is not None
        total = torch.zeros((), device=self._device)
        for micro in (micro.to(self._device) for micro in part.micros):
            with self.passes.precision():
                value = self.critic(micro.ids, micro.positions).flatten()[micro.before]  # [m]
            weight = part.value_weights[micro.token]  # [m]
            loss = (weight * critic_objective(value, labels().at(micro.token), self.loss)).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
        self._ranks.sum_gradients(self.critic)
        return _Launched(
            sums={"critic/loss": total},
            peaks={},
            norm=self.critic_optimizer.launch(self.version),
            weight=part.value_weights.sum(),
            sampled_weight=(part.value_weights * labels().sampled).sum(),
        )

    def _measure(self, optimizer: Optimizer, launched: _Launched) -> Measured:
        """Fetches what a step measured, on all ranks, and what became of it."""
        figures = {"norm": launched.norm, "every": launched.weight, "sampled": launched.sampled_weight}
        sums, peaks, own = _fetch(launched.sums, launched.peaks, figures)
        step = optimizer.settle(self.version, own["norm"])
        measures: dict[str, float] = {}
        for name, total in _add_up(self._ranks.gather(sums)).items():
            weight = own["sampled" if name == "policy/sampler_gap" else "every"]
            # Losses are sums, as their gradients are; others are means, whether or not the weights sum to one.
            measures[name] = total if name in _LOSSES else total / weight
        for of_rank in self._ranks.gather(peaks):
            measures |= {name: max(peak, measures.get(name, peak)) for name, peak in of_rank.items()}
        return measures, step

    def _read(self, micros: Sequence[MicroBatch]) -> dict[str, float]:
        """What of all that models read was padding, and what of the rows they were spared."""
        mine = [(micro.tokens, micro.ids.numel(), micro.shared) for micro in micros]
        read = torch.tensor(mine, dtype=torch.long).reshape(-1, 3).sum(0)
        tokens, places, shared = self._ranks.sum_(read).tolist()
        return {"batch/padding_share": 1 - tokens / places, "batch/shared_share": shared / (tokens + shared)}

    def _require_agreement(self, batch: Batch) -> None:
        """Ranks that were given other groups, or hold other weights, would add up gradients of different things."""
        if self._ranks.world == 1:
            return
        parameters = [p for module in self._modules() for p in module.parameters()]
        sums = torch.stack([p.detach().sum(dtype=torch.double) for p in parameters])
        digest = hashlib.blake2b(repr((self.version, sums.tolist())).encode())
        for tensor in (batch.ids, batch.action, batch.logprob, batch.reward, batch.row):
            digest.update(tensor.numpy().tobytes())
        notes = self._ranks.gather(digest.hexdigest())
        assert len(set(notes)) == 1, "every rank begins an update with the same groups and the same weights"

    def _refuse_lonely(self, groups: Sequence[Group]) -> None:
        if self.credit.compares_groups and groups and all(len(group.trajectories) < 2 for group in groups):
            raise ConfigError(
                f"credit.estimator: {self.credit.estimator} compares the trajectories of one task, and every group "
                "has one alone: sample each task twice or more, or use gae or reinforce++"
            )

    def state_dict(self) -> dict[str, object]:
        """All that the next update depends on, but for the policy's weights, which have a file of their own."""
        state: dict[str, object] = {"version": self.version, "optimizer": self.optimizer.state_dict()}
        if self.reference is not None:
            state["reference"] = self.reference.state_dict()
        if self.critic is not None and self.critic_optimizer is not None:
            state["critic"] = self.critic.state_dict()
            state["critic_optimizer"] = self.critic_optimizer.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a state of a learner with the same settings; the policy's weights are loaded apart."""
        absent = set(self.state_dict()) - set(state)
        if absent:
            raise RunError(
                f"the checkpoint holds no {', '.join(sorted(absent))}: resume with the credit and loss settings it "
                "was made with, or begin a new run from its weights"
            )
        version = state["version"]
        assert isinstance(version, int)
        self.version = version
        self.optimizer.load_state_dict(_section(state, "optimizer"))
        if self.reference is not None:
            self.reference.load_state_dict(_tensors(state, "reference"))
        if self.critic is not None and self.critic_optimizer is not None:
            self.critic.load_state_dict(_tensors(state, "critic"))
            self.critic_optimizer.load_state_dict(_section(state, "critic_optimizer"))


def _summarise(area: str, steps: Sequence[Measured]) -> dict[str, float]:
    """Means over the steps whose gradient was finite, and how many steps were taken, idle and skipped."""
    sound = [measures | {f"{area}/grad_norm": step.grad_norm} for measures, step in steps if step.outcome != "skipped"]
    metrics = {name: sum(measures[name] for measures in sound) / len(sound) for name in (sound[0] if sound else ())}
    for outcome in ("taken", "idle", "skipped"):
        metrics[f"{area}/steps_{outcome}"] = sum(step.outcome == outcome for _, step in steps)
    return metrics


def _add_up(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name; a rank whose share was empty measured nothing."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _fetch(*several: Figures) -> list[dict[str, float]]:
    """What is on the device, all in one go: to ask for one after the other would be to wait for each."""
    values = torch.stack([figure.double() for figures in several for figure in figures.values()]).tolist()
    left = iter(values)
    return [{name: next(left) for name in figures} for figures in several]


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section


def _tensors(state: Mapping[str, object], name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in _section(state, name).items() if isinstance(value, torch.Tensor)}
