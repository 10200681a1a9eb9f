"""From groups to new weights: batch, labels, epochs of mini-batches, optimizer steps.

Invariant: an update is a function of the learner's state, the groups and the seed, and nothing else, so a resumed
run equals one that was never stopped. What cannot teach (no trajectory, no spread) is a counted no-op, never NaN.
Shapes: L tokens of all rows, B rows padded to W, m trained tokens of a micro-batch.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from pydantic import Field
from torch import nn

from turnwise.credit.estimate import CreditSettings
from turnwise.errors import ConfigError, RunError
from turnwise.learner.batch import Batch, MicroBatch, PerTurn, padding_share
from turnwise.learner.critic import Critic, CriticSettings
from turnwise.learner.labels import Labels, label
from turnwise.learner.objective import critic_objective, policy_objective
from turnwise.learner.optimizer import Optimizer, OptimizerSettings, OptimizerStep
from turnwise.learner.passes import Passes, mode, seeded
from turnwise.learner.reference import Reference
from turnwise.learner.score import check_scoring, score
from turnwise.losses.settings import LossSettings
from turnwise.seeds import derive_seed
from turnwise.settings import Settings
from turnwise.types import Group

logger = logging.getLogger(__name__)

Measured: TypeAlias = tuple[dict[str, float], OptimizerStep]
"""The metrics of one mini-batch, and what became of its optimizer step."""


class LearnerSettings(Settings):
    """How a batch becomes optimizer steps."""

    epochs: int = Field(default=1, ge=1)
    """How often each batch is gone through."""
    minibatches: int = Field(default=1, ge=1)
    """Into how many optimizer steps an epoch is split, by whole trajectories."""
    tokens_per_microbatch: int = Field(default=16384, ge=1)
    """The most tokens, padding included, that go through a model at once; it changes memory, never the gradient."""
    optimizer: OptimizerSettings = OptimizerSettings()
    critic: CriticSettings = CriticSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an update did."""

    metrics: dict[str, float]
    """By `area/name`: `{"policy/loss": .02, "policy/entropy": 1.1, ...}`."""
    advantages: PerTurn
    """For every trajectory given, in order, turn by turn; one that was left out has no turns."""


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
    ) -> None:
        """`temperature` is the sampler's; `total_steps` counts updates, for the schedules."""
        if temperature <= 0:
            raise ConfigError(f"temperature: {temperature} samples nothing to learn from; set it above 0")
        if loss.kl > 0 and loss.kl_in == "loss" and loss.kl_form == "k1":
            logger.warning("loss.kl_estimator: k1 in the loss has a gradient of zero mean; k2 and k3 hold the policy")
        self.model = model.to(device)
        self.settings, self.credit, self.loss = settings, credit, loss
        self.version = 0
        self._device = device
        self._passes = Passes(
            device=device,
            autocast=autocast,
            temperature=temperature,
            token_budget=settings.tokens_per_microbatch,
        )
        with mode(model, training=False), self._passes.precision():
            check_scoring(model, device)
        self.optimizer = Optimizer(model, settings.optimizer, total_steps=total_steps)
        self.reference = Reference(model) if loss.kl > 0 else None
        self.critic: Critic | None = None
        self.critic_optimizer: Optimizer | None = None
        if credit.needs_critic:
            self.critic = Critic(model)
            self.critic_optimizer = Optimizer(self.critic, settings.critic.optimizer, total_steps=total_steps)

    def update(self, groups: Sequence[Group], *, seed: int) -> Update:
        """Learns from groups sampled by this policy (or one not much older), and counts one version up."""
        self._refuse_lonely(groups)
        batch = Batch.of(groups, advantage_mask=self.credit.advantage_mask, action_mask=self.loss.action_mask)
        metrics = batch.metrics() | {"optim/lr": self.optimizer.lr(self.version)}
        advantage = torch.zeros(len(batch.ids))  # [L]
        if batch.rows:
            labels, credited = label(
                batch,
                model=self.model,
                critic=self.critic,
                reference=self.reference,
                passes=self._passes,
                credit=self.credit,
                loss=self.loss,
            )
            advantage = labels.advantage
            metrics |= credited | self._learn(batch, labels.to(self._device), seed)
        self.version += 1
        return Update(metrics=metrics, advantages=batch.by_turn(advantage))

    def _learn(self, batch: Batch, labels: Labels, seed: int) -> dict[str, float]:
        """Epochs of mini-batches, each one step of the policy and one of the critic."""
        warming_up = self.critic is not None and self.version < self.settings.critic.warmup
        modules = [module for module in (self.model, self.critic) if module is not None]
        policy: list[Measured] = []
        critic: list[Measured] = []
        packed: list[MicroBatch] = []
        with mode(*modules, training=True), seeded(derive_seed(seed, "dropout"), self._device):
            for epoch in range(self.settings.epochs):
                for rows in batch.minibatches(self.settings.minibatches, derive_seed(seed, "minibatches", epoch)):
                    weights = batch.weights(rows, self.loss.aggregation).to(self._device)  # [L]
                    micros = batch.micro_batches(self.settings.tokens_per_microbatch, rows=rows)
                    packed += micros
                    if not warming_up:
                        policy.append(self._policy_step(micros, weights, labels))
                    if self.critic is not None:
                        critic.append(self._critic_step(micros, weights, labels))
        metrics = {"batch/padding_share": padding_share(packed)} | _summarise("policy", policy)
        if policy and policy[0][1].outcome != "skipped":
            # Only the first mini-batch meets the weights that sampled it: later ones have been moved by our own steps.
            metrics |= {name: value for name, value in policy[0][0].items() if name.startswith("policy/sampler_gap")}
        if self.critic_optimizer is not None:
            metrics |= _summarise("critic", critic)
            metrics |= {"critic/lr": self.critic_optimizer.lr(self.version), "critic/warming_up": float(warming_up)}
        return metrics

    def _policy_step(self, micros: Sequence[MicroBatch], weights: torch.Tensor, labels: Labels) -> Measured:
        totals: dict[str, torch.Tensor] = {}
        widest = torch.zeros((), device=self._device)
        for micro in (micro.to(self._device) for micro in micros):
            with self._passes.precision():
                scores = score(self.model, micro, self._passes.temperature)
            here = labels.at(micro.token)
            loss, measures = policy_objective(scores, here, self.loss)  # [m]
            weight = weights[micro.token]  # [m]
            (weight * loss).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            gap = (scores.logprob.detach() - here.old_logprob).abs() * here.sampled  # [m]
            widest = torch.maximum(widest, gap.max())
            for name, measure in (measures | {"policy/sampler_gap": gap, "sampled": here.sampled}).items():
                totals[name] = totals.get(name, 0) + (weight * measure).sum()
        sampled = totals.pop("sampled")
        totals["policy/sampler_gap"] /= sampled
        totals["policy/sampler_gap_max"] = widest
        step = self.optimizer.step(self.version)
        return {name: float(total) for name, total in totals.items()}, step

    def _critic_step(self, micros: Sequence[MicroBatch], weights: torch.Tensor, labels: Labels) -> Measured:
        assert self.critic is not None
        assert self.critic_optimizer is not None
        total = torch.zeros((), device=self._device)
        for micro in (micro.to(self._device) for micro in micros):
            with self._passes.precision():
                value = self.critic(micro.ids).flatten()[micro.position - 1]  # [m]
            loss = (weights[micro.token] * critic_objective(value, labels.at(micro.token), self.loss)).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
        return {"critic/loss": float(total)}, self.critic_optimizer.step(self.version)

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


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section


def _tensors(state: Mapping[str, object], name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in _section(state, name).items() if isinstance(value, torch.Tensor)}
