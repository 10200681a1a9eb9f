"""From groups to new weights: batch, loss inputs, epochs of mini-batches, optimizer steps.

Invariant: an update is a function of the learner's state, the groups and the seed, and nothing else, so a resumed
run equals one that was never stopped. A batch that cannot teach (no trajectory, no variance) is a counted no-op.
How rows are laid out (padded or packed, in how many micro-batches, over how many ranks) changes no gradient.
Shapes: L tokens of all rows, B rows padded to W (or B = 1 and rows end to end), m trained tokens of a micro-batch.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from turnwise.compute.device import on_one_thread, send
from turnwise.compute.score import check_packing, check_scoring, score
from turnwise.credit.settings import CreditSettings
from turnwise.errors import ConfigError, RunError
from turnwise.learner.batch import Batch
from turnwise.learner.check import check_settings
from turnwise.learner.compiling import compile_passes
from turnwise.learner.fitting import (
    fitted_state,
    grow_runner,
    restore_fitted,
    run_or_shrink,
    shrink_runner,
    watch_memory,
)
from turnwise.learner.forward_runner import ForwardRunner, Packing, choose_packing, mode, seeded
from turnwise.learner.loss_inputs import LossInputs, OldPolicy, choose_old_policy, needs_forward, prepare_loss_inputs
from turnwise.learner.minibatch import Epochs, MiniBatch
from turnwise.learner.objective import critic_objective, policy_objective
from turnwise.learner.optimizer import Optimizer
from turnwise.learner.parallel import SINGLE, Parallel
from turnwise.learner.settings import LearnerSettings
from turnwise.learner.skipping import find_taught, mean_surprisal, rows_to_read, skips_rows
from turnwise.learner.step_metrics import Measured, PendingStep, measure_reading, measure_step, summarise_steps
from turnwise.learner.token_log import TokenLog
from turnwise.learner.update import Update
from turnwise.losses.settings import LossSettings
from turnwise.models.critic import Critic
from turnwise.models.reference import Reference
from turnwise.seeds import derive_seed
from turnwise.types import Group

if TYPE_CHECKING:
    from turnwise.ledger import Ledger

T = TypeVar("T")


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
        parallel: Parallel = SINGLE,
        ledger: "Ledger | None" = None,
    ) -> None:
        """`temperature` is the sampler's; `total_steps` is that of the schedules; `ledger` is charged for time.

        Every rank makes a learner of the same model, and updates it with the same batches and seeds.
        """
        check_settings(model, settings, loss, temperature)
        # Before any optimizer: a sharded module has parameters of its own.
        whole = model.to(device)
        self.model = parallel.prepare(whole)
        self.settings, self.credit, self.loss, self.parallel = settings, credit, loss, parallel
        self.version = 0
        self._device = device
        runner = ForwardRunner(
            device=device,
            autocast=autocast,
            temperature=temperature,
            token_budget=settings.first_microbatch,
            most_tokens=settings.largest_microbatch,
            parallel=parallel,
            checkpointing=settings.checkpointing,
            offload=settings.activation_offload,
            ledger=ledger,
        )
        packing = parallel.broadcast(self._check_model(whole, runner) if parallel.is_main else None)
        optimizer = functools.partial(Optimizer, total_steps=total_steps, parallel=parallel)
        self.optimizer = optimizer(self.model, settings.optimizer)
        self.reference = Reference(self.model, parallel.local) if loss.kl_coef > 0 else None
        self.critic: Critic | None = None
        self.critic_optimizer: Optimizer | None = None
        if credit.needs_critic:
            self.critic = parallel.prepare(Critic(whole))
            self.critic_optimizer = optimizer(self.critic, settings.critic.optimizer)
        runner = replace(runner, packing=packing)
        self.runner = compile_passes(runner, settings, *self._modules(), steps=total_steps, setting="learner.compile")
        self._skips_rows = skips_rows(settings, credit=credit, loss=loss, device=device)

    def _check_model(self, model: nn.Module, runner: ForwardRunner) -> Packing:
        """How rows are packed, once the model is known to score them right."""
        with mode(model, training=False):
            with runner.precision():
                check_scoring(model, self._device)
                packing = choose_packing(model, self._device, asked=self.settings.packing)
            if packing is Packing.MASKED:
                check_packing(model, self._device, setting="learner.packing")
        return packing

    def update(self, groups: Sequence[Group], *, seed: int) -> Update:
        """Learns from groups sampled by this policy (or one not much older), and counts one version up."""
        with self.accounted():
            return self.learn(self.lay_out(groups), seed=seed)

    def lay_out(self, groups: Sequence[Group]) -> Batch:
        """The batch that `learn` takes, with the masks of this learner's settings."""
        if self.credit.compares_groups and groups and all(len(group.trajectories) < 2 for group in groups):
            raise ConfigError(
                f"credit.estimator: {self.credit.estimator} compares the trajectories of one task, and every group "
                "has only one: sample each task twice or more, or use gae or reinforce++"
            )
        with on_one_thread(self._device):
            return Batch.of(
                groups,
                advantage_mask=self.credit.advantage_mask,
                action_mask=self.loss.action_mask,
                tails=self.critic is not None,
            )

    def learn(self, batch: Batch, *, seed: int) -> Update:
        """Learns from a batch, the same one on every rank, and counts one version up; `accounted` is the caller's."""
        with on_one_thread(self._device):
            assert self.parallel.agree(lambda: self._fingerprint(batch)), (
                "every rank begins an update with the same groups and the same weights"
            )
            metrics = batch.metrics() | {"optim/lr": self.optimizer.lr(self.version)}
            if not batch.rows:
                self.version += 1
                return Update(metrics=metrics, advantages=batch.by_turn(batch.reward))
            old_policy = choose_old_policy(
                self.loss,
                dtype=self.runner.coarsest_dtype(self.model),
                stale=batch.oldest_version < self.version,
                single_step=self.settings.epochs == self.settings.minibatches == 1,
            )
            prepared = functools.cache(lambda: self._fit(batch, lambda: self._prepare_inputs(batch, old_policy)))
            on_device = functools.cache(lambda: prepared()[0].to(self._device))
            if needs_forward(batch, critic=self.critic, reference=self.reference, old_policy=old_policy):
                prepared()  # with the weights as they are; others are made when first used, behind the first forward
            taught = find_taught(batch, prepared()[0].advantage) if self._skips_rows else None  # [T]
            memory = watch_memory(self.runner)
            epochs = self._run_epochs(batch, on_device, seed, taught)
            inputs, credit_metrics = prepared()
            advantages = batch.by_turn(inputs.advantage)  # while a GPU is still learning
            step_metrics, first_clip_fraction = self._settle(epochs, batch)
            if self.runner.token_budget != self.settings.first_microbatch:
                step_metrics["learner/tokens_per_microbatch"] = float(self.runner.token_budget)
            self.runner = grow_runner(self.runner, batch, memory)
            exact = inputs.old_logprob if old_policy == "learner" else None  # of every token, not of the first step's
            logprobs, entropies = epochs.log.by_turn(batch, self.parallel, logprob=exact)
            self.version += 1
            return Update(
                metrics=metrics | credit_metrics | step_metrics,
                advantages=advantages,
                logprobs=logprobs,
                entropies=entropies,
                first_clip_fraction=first_clip_fraction,
            )

    def accounted(self) -> AbstractContextManager[None]:
        """Within it, time is charged to updates."""
        ledger = self.runner.ledger
        return nullcontext() if ledger is None else ledger.spend("update")

    def _prepare_inputs(self, batch: Batch, old_policy: OldPolicy) -> tuple[LossInputs, dict[str, float]]:
        return prepare_loss_inputs(
            batch,
            model=self.model,
            critic=self.critic,
            reference=self.reference,
            runner=self.runner,
            credit=self.credit,
            loss=self.loss,
            old_policy=old_policy,
        )

    def _modules(self) -> list[nn.Module]:
        return [module for module in (self.model, self.critic) if module is not None]

    def _run_epochs(
        self, batch: Batch, inputs: Callable[[], LossInputs], seed: int, taught: torch.Tensor | None
    ) -> Epochs:
        """Epochs of mini-batches, each one step of the policy and one of the critic.

        Only rows of `taught` trajectories [T] are read, where it is given.
        """
        warming_up = self.critic is not None and self.version < self.settings.critic.warmup
        log = TokenLog(batch, self._device)
        epochs = Epochs(policy=[], critic=[], micros=[], warming_up=warming_up, log=log)
        seed_of_dropout = derive_seed(seed, "dropout", self.parallel.rank)
        passes = self.runner.running(*self._modules(), dropout=self.settings.dropout)
        with passes, seeded(seed_of_dropout, self._device):
            for epoch in range(self.settings.epochs):
                for rows in batch.minibatches(self.settings.minibatches, derive_seed(seed, "minibatches", epoch)):
                    make = functools.cache(lambda budget, rows=rows: self._minibatch(batch, rows, inputs, taught))
                    if not warming_up:
                        log.begin_step()
                        step = functools.partial(self._policy_step, make, inputs, log)
                        epochs.policy.append(self._fit(batch, step))
                    if self.critic is not None:
                        epochs.critic.append(self._fit(batch, functools.partial(self._critic_step, make, inputs)))
                    epochs.micros.extend(make(self.runner.token_budget).micros)
        return epochs

    def _fit(self, batch: Batch, work: Callable[[], T]) -> T:
        """Runs passes after which no weight has moved, in smaller micro-batches where the device is full."""

        def shrink(error: torch.OutOfMemoryError) -> None:
            modules, setting = self._modules(), "learner.tokens_per_microbatch"
            self.runner = shrink_runner(self.runner, batch, error, *modules, setting=setting)

        return run_or_shrink(work, shrink)

    def _settle(self, epochs: Epochs, batch: Batch) -> tuple[dict[str, float], float | None]:
        """Waits for all steps and returns their metrics, and the share of the first mini-batch that was clipped."""
        first_clip_fraction = None
        policy = [self._measure(self.optimizer, step) for step in epochs.policy]
        given = len(batch.ids) * self.settings.epochs if self._skips_rows else None
        metrics = measure_reading(epochs.micros, self.parallel, given=given) | summarise_steps("policy", policy)
        if metrics.get("batch/skipped_share"):
            metrics["policy/entropy"] = mean_surprisal(batch, self._weights(batch, range(batch.rows)))
        if policy and policy[0][1].outcome != "skipped":
            # Only the first mini-batch meets the weights that sampled it: later ones have been moved by our own steps.
            metrics |= {name: value for name, value in policy[0][0].items() if name.startswith("policy/sampler_gap")}
            first_clip_fraction = policy[0][0].get("policy/clip_fraction")
        if self.critic_optimizer is not None:
            critic = [self._measure(self.critic_optimizer, step) for step in epochs.critic]
            metrics |= summarise_steps("critic", critic)
            metrics["critic/lr"] = self.critic_optimizer.lr(self.version)
            metrics["critic/warming_up"] = float(epochs.warming_up)
        return metrics, first_clip_fraction

    def _measure(self, optimizer: Optimizer, pending: PendingStep) -> Measured:
        return measure_step(pending, optimizer, self.version, self.parallel)

    def _minibatch(
        self, batch: Batch, rows: Sequence[int], inputs: Callable[[], LossInputs], taught: torch.Tensor | None
    ) -> MiniBatch:
        """This rank's share of a mini-batch, with weights over the whole of it."""
        value_weights = None
        if self.critic is not None:
            mask = inputs().value_mask
            value_weights = send(self._weights(batch, rows, None if mask is None else mask.cpu()), self._device)
        weights = self._weights(batch, rows)  # [L]
        read = rows if taught is None else rows_to_read(batch, rows, taught)
        read_weights = weights if len(read) == len(rows) else weights * batch.in_rows(read)  # [L]
        micros = self.runner.micro_batches(batch, rows=read, whole_trajectories=self.loss.ratio == "trajectory")
        return MiniBatch(
            micros=micros,
            idle=self.runner.idle_passes(batch, micros),
            weights=send(weights, self._device),
            read_weights=send(read_weights, self._device),
            value_weights=value_weights,
            sampler_logprob=send(batch.logprob, self._device),
        )

    def _weights(self, batch: Batch, rows: Sequence[int], among: torch.Tensor | None = None) -> torch.Tensor:
        """[L]: of each trained token, or of those in `among` [L], in the loss of a mini-batch."""
        return batch.weights(rows, self.loss.aggregation, fixed_length=self.loss.fixed_length, among=among)

    def _policy_step(
        self, make: Callable[[int], MiniBatch], inputs: Callable[[], LossInputs], log: TokenLog
    ) -> PendingStep:
        mini = make(self.runner.token_budget)
        totals: dict[str, torch.Tensor] = {}
        widest = torch.zeros((), device=self._device)
        for micro in (micro.to(self._device) for micro in mini.micros):
            with self.runner.precision():
                scores = score(self.model, micro, self.runner.temperature)
            log.add(micro.token, scores)
            here = inputs().at(micro.token)
            loss, measures = policy_objective(scores, here, self.loss)  # [m]
            weight = mini.weights[micro.token]  # [m]
            (weight * loss).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            gap = (scores.logprob.detach() - mini.sampler_logprob[micro.token]).abs() * here.sampled  # [m]
            widest = torch.maximum(widest, gap.max())
            for name, measure in (measures | {"policy/sampler_gap": gap}).items():
                totals[name] = totals.get(name, 0) + (weight * measure).sum()
        for micro in mini.idle:
            with self.runner.precision():
                idle = score(self.model, micro, self.runner.temperature).logprob
            (0 * idle.sum()).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.parallel.sum_gradients(self.model.parameters())
        every, read = mini.weights.sum(), mini.read_weights.sum()
        sampled = (mini.read_weights * inputs().sampled).sum()
        return PendingStep(
            sums=totals,
            maxima={"policy/sampler_gap_max": widest},
            norm=self.optimizer.launch(self.version),  # last: what fails after it would be tried again, and move twice
            weight=every,
            read_weight=read,
            sampled_weight=sampled,
        )

    def _critic_step(self, make: Callable[[int], MiniBatch], inputs: Callable[[], LossInputs]) -> PendingStep:
        mini = make(self.runner.token_budget)
        assert self.critic is not None
        assert self.critic_optimizer is not None
        assert mini.value_weights is not None
        total = torch.zeros((), device=self._device)
        for micro in (micro.to(self._device) for micro in mini.micros):
            with self.runner.precision():
                value = self.critic(micro.ids, micro.positions).flatten()[micro.before]  # [m]
            weight = mini.value_weights[micro.token]  # [m]
            loss = (weight * critic_objective(value, inputs().at(micro.token), self.loss)).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
        for micro in mini.idle:
            with self.runner.precision():
                idle = self.critic(micro.ids, micro.positions)
            (0 * idle.sum()).backward()
        self.parallel.sum_gradients(self.critic.parameters())
        every = mini.value_weights.sum()
        return PendingStep(
            sums={"critic/loss": total},
            maxima={},
            norm=self.critic_optimizer.launch(self.version),
            weight=every,
            read_weight=every,
            sampled_weight=every,  # nothing of the critic is about sampled tokens alone
        )

    def _fingerprint(self, batch: Batch) -> str:
        """Of the version, weights and batch: ranks that differ in one would add up gradients of different things."""
        parameters = [p for module in self._modules() for p in module.parameters()]
        sums = torch.stack([self.parallel.whole(p.detach().sum(dtype=torch.double)) for p in parameters])
        digest = hashlib.blake2b(repr((self.version, sums.tolist())).encode())
        for tensor in (batch.ids, batch.action, batch.logprob, batch.reward, batch.row):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()

    def state_dict(self) -> dict[str, object]:
        """All that the next update depends on, but for the policy's weights; in full."""
        return self.parallel.gather_state(self.own_state())

    def own_state(self) -> dict[str, object]:
        """The same with this rank's part of each tensor."""
        state: dict[str, object] = {"version": self.version, "optimizer": self.optimizer.state_dict()}
        if self.reference is not None:
            state["reference"] = self.reference.state_dict()
        if self.critic is not None:
            assert self.critic_optimizer is not None
            state["critic"] = self.critic.state_dict()
            state["critic_optimizer"] = self.critic_optimizer.state_dict()
        return state | fitted_state(self.settings.tokens_per_microbatch, self.settings.first_microbatch, self.runner)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a learner's state, in full or this rank's parts; the policy's weights are loaded apart."""
        absent = set(self.own_state()) - set(state) - {"microbatch"}
        if absent:
            raise RunError(
                f"the checkpoint holds no {', '.join(sorted(absent))}: resume with the credit and loss settings it "
                "was made with, or begin a new run from its weights"
            )
        version = state["version"]
        assert isinstance(version, int)
        self.version = version
        self.runner = restore_fitted(self.settings.tokens_per_microbatch, self.runner, state)
        self.optimizer.load_state_dict(_section(state, "optimizer"))
        if self.reference is not None:
            self.reference.load_state_dict(_tensors(state, "reference"), self.parallel.place)
        if self.critic is not None:
            assert self.critic_optimizer is not None
            self.parallel.load(self.critic, _tensors(state, "critic"))
            self.critic_optimizer.load_state_dict(_section(state, "critic_optimizer"))


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section


def _tensors(state: Mapping[str, object], name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in _section(state, name).items() if isinstance(value, torch.Tensor)}
