"""Supervised fine-tuning on demonstrations: the batch, masks and weights of RL, with the likelihood as the loss.

loss = − Σ weight · log π(token)        over the demonstrator's actions, and not its context

unless `context_weight` gives context tokens a weight too. A model that has never seen text learns to copy from its
context much sooner when it also learns to predict that context.
Dropout is as the model has it: here it regularises, and there is no probability ratio for its noise to disturb.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from turnwise.compute.device import Arriving, send
from turnwise.compute.layout import MicroBatch
from turnwise.compute.score import score
from turnwise.learner.batch import Batch
from turnwise.learner.compiling import compile_passes
from turnwise.learner.fitting import (
    fitted_state,
    grow_runner,
    restore_fitted,
    run_or_shrink,
    shrink_runner,
    watch_memory,
)
from turnwise.learner.forward_runner import ForwardRunner, choose_packing, seeded
from turnwise.learner.optimizer import Optimizer
from turnwise.learner.parallel import SINGLE, Parallel
from turnwise.learner.settings import SFTSettings
from turnwise.seeds import derive_seed


def sft_loss(model: nn.Module, micro: MicroBatch, weights: torch.Tensor) -> torch.Tensor:
    """The loss of a micro-batch's trained tokens, with `Batch.weights` [L] of its whole mini-batch."""
    logprob = score(model, micro, temperature=1.0, entropy=False).logprob  # [m]
    return -(weights[micro.token] * logprob).sum()


class SFTLearner:
    """Optimizer steps on demonstrations; on a GPU, a step is launched before the metrics of the last one are read.

    Every rank is given the whole batches and trains on its share of their rows.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: SFTSettings,
        *,
        total_steps: int,
        seed: int,
        autocast: torch.dtype | None = None,
        parallel: Parallel = SINGLE,
    ) -> None:
        self._parallel, self._seed = parallel, seed
        self._settings = settings
        self._runner = _make_runner(model, settings, autocast, parallel, steps=total_steps)
        self.model = parallel.prepare(model)
        self._optimizer = Optimizer(self.model, settings.optimizer, total_steps=total_steps, parallel=parallel)
        self._ahead = _steps_ahead(self._runner.device)
        self._launched: deque[LaunchedStep] = deque()

    def step(self, batch: Batch, *, step: int) -> list[dict[str, float]]:
        """Launches a step, and returns the metrics of those that are complete: `[{"sft/loss": 1.7, ...}]`."""
        memory = watch_memory(self._runner)
        self._launched.append(run_or_shrink(lambda: self._launch(batch, step), partial(self._shrink, batch)))
        self._runner = grow_runner(self._runner, batch, memory)
        return self._settle(self._ahead)

    def _launch(self, batch: Batch, step: int) -> "LaunchedStep":
        # Dropout follows from the step and the rank, so that a resumed run draws what an unbroken one would have.
        with seeded(derive_seed(self._seed, "dropout", step, self._parallel.rank), self._runner.device):
            weight = self._settings.context_weight
            return launch_sft_step(self.model, batch, self._optimizer, self._runner, step=step, context_weight=weight)

    def _shrink(self, batch: Batch, error: torch.OutOfMemoryError) -> None:
        setting = "sft.tokens_per_microbatch"
        self._runner = shrink_runner(self._runner, batch, error, self.model, setting=setting)

    def finish(self) -> list[dict[str, float]]:
        """The metrics of the steps still under way."""
        return self._settle(0)

    def own_state(self) -> dict[str, object]:
        """All that the next step depends on, but for the weights, with this rank's part of each tensor."""
        assert not self._launched, "finish comes first: a step under way may turn out to be skipped"
        asked, first = self._settings.tokens_per_microbatch, self._settings.first_microbatch
        return {"optimizer": self._optimizer.state_dict(), **fitted_state(asked, first, self._runner)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on from a state of the same settings; the weights are loaded before this learner is made."""
        optimizer = state["optimizer"]
        assert isinstance(optimizer, Mapping)
        self._optimizer.load_state_dict(optimizer)
        self._runner = restore_fitted(self._settings.tokens_per_microbatch, self._runner, state)

    def _settle(self, left: int) -> list[dict[str, float]]:
        return [self._launched.popleft().settle(self._optimizer) for _ in range(len(self._launched) - left)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStep:
    """A step that a GPU may still be computing."""

    step: int
    loss: Arriving
    """[], of all ranks."""
    grad_norm: Arriving
    """[]"""

    def settle(self, optimizer: Optimizer) -> dict[str, float]:
        """Waits for it: `{"sft/loss": 1.7, "sft/grad_norm": .4, "sft/lr": 1e-4}`; to be called in order of steps."""
        taken = optimizer.settle(self.step, float(self.grad_norm.wait()))
        loss, lr = float(self.loss.wait()), optimizer.lr(self.step)
        metrics = {"sft/loss": loss, "sft/grad_norm": taken.grad_norm, "sft/lr": lr}
        return metrics | ({"sft/steps_skipped": 1.0} if taken.outcome == "skipped" else {})


def launch_sft_step(
    model: nn.Module, batch: Batch, optimizer: Optimizer, runner: ForwardRunner, *, step: int, context_weight: float
) -> LaunchedStep:
    """One optimizer step on a batch of demonstrations; `runner` and `optimizer` are of the same ranks."""
    device = runner.device
    weights = batch.weights(range(batch.rows), "token") * torch.where(batch.action, 1.0, context_weight)  # [L]
    weights = send(weights / weights.sum(), device)
    total = torch.zeros((), device=device)
    with runner.running(model, dropout=True):
        micros = runner.micro_batches(batch)
        idle_passes = runner.idle_passes(batch, micros)
        for micro in micros:
            with runner.precision():
                loss = sft_loss(model, micro.to(device), weights)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
        for idle in idle_passes:
            with runner.precision():
                loss = sft_loss(model, idle, weights)
            (0 * loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    runner.parallel.sum_gradients(model.parameters())
    loss = runner.parallel.sum_(total)
    # Last: what fails after it would be tried again, and move the weights twice.
    return LaunchedStep(step=step, loss=Arriving(loss), grad_norm=Arriving(optimizer.launch(step)))


def _steps_ahead(device: torch.device) -> int:
    """A GPU computes the next step while the host records the last one."""
    return 1 if device.type == "cuda" else 0


def _make_runner(
    model: nn.Module, settings: SFTSettings, autocast: torch.dtype | None, parallel: Parallel, *, steps: int
) -> ForwardRunner:
    """Packed rows on a GPU, where the model supports them; on a CPU padding costs no more."""
    device = next(model.parameters()).device
    asked = None if device.type == "cuda" else False
    packing = parallel.broadcast(choose_packing(model, device, asked=asked) if parallel.is_main else None)
    runner = ForwardRunner(
        device=device,
        autocast=autocast,
        temperature=1.0,
        token_budget=settings.first_microbatch,
        most_tokens=settings.largest_microbatch,
        packing=packing,
        parallel=parallel,
    )
    return compile_passes(runner, settings, model, steps=steps, setting="sft.compile")
