"""How forward passes are run: mode, precision, attention, layout and randomness, each restored afterwards.

Shapes: L tokens of all rows, B rows padded to W (or B = 1 and rows end to end).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch
from torch import nn

from turnwise.compute.attention import varlen_attention
from turnwise.compute.host_memory import bounded_memory
from turnwise.compute.layers import Compiled, activation_checkpointing
from turnwise.compute.layout import MicroBatch, MicroBatches
from turnwise.compute.offload import activation_offload
from turnwise.compute.score import score, supports_varlen_attention
from turnwise.learner.batch import Batch
from turnwise.learner.parallel import SINGLE, Parallel
from turnwise.models.critic import Critic

if TYPE_CHECKING:
    from turnwise.ledger import Ledger


HALF = (torch.bfloat16, torch.float16)


class Packing(StrEnum):
    """How the rows of a micro-batch are laid out, and what keeps attention within a row."""

    PADDED = "padded"
    """Side by side, padded to the longest."""
    MASKED = "masked"
    """End to end, kept apart by a mask that transformers builds: attention costs the square of the micro-batch."""
    BY_ROWS = "by_rows"
    """End to end with variable-length attention; equal prompts are read once."""


def choose_packing(model: nn.Module, device: torch.device, *, asked: bool | None) -> Packing:
    """The layout asked for, in the fastest form that the model supports; None takes the cheapest."""
    if asked is not False and supports_varlen_attention(model, device):
        return Packing.BY_ROWS
    return Packing.MASKED if asked else Packing.PADDED


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRunner:
    """Runs models over micro-batches; its passes without gradients cover a whole batch and return to the CPU.

    Each rank runs its own share of the rows, and every rank gets the results of all.
    """

    device: torch.device
    autocast: torch.dtype | None
    """The precision of the forward pass; None is that of the weights."""
    temperature: float
    """The sampler's."""
    token_budget: int
    """Most tokens, padding included, in a micro-batch."""
    most_tokens: int = 0
    """What it may grow to where memory is left; never, if it is no more."""
    packing: Packing = Packing.PADDED
    parallel: Parallel = SINGLE
    checkpointing: bool = False
    """Activation checkpointing: layers keep only their inputs for the backward pass."""
    offload: bool = False
    """Activation offload: what the backward pass needs waits in the host's memory; on a CPU it is there anyway."""
    compiled: Compiled | None = None
    """Compiled layers or backbones to run in place of the plain ones."""
    ledger: "Ledger | None" = None
    """Charged for the time of passes without gradients."""

    def precision(self) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def coarsest_dtype(self, model: nn.Module) -> torch.dtype:
        """The dtype whose rounding a model's logprobs carry: float32, or half precision if any product runs in it."""
        used = {p.dtype for p in model.parameters()} | {torch.float32 if self.autocast is None else self.autocast}
        return max({torch.float32, *used & set(HALF)}, key=lambda dtype: torch.finfo(dtype).eps)

    @contextmanager
    def running(self, *modules: nn.Module, dropout: bool) -> Iterator[None]:
        """Within it, the modules run with these settings, forward and, where gradients are enabled, backward.

        With `dropout` the modules are in training mode, which is what their dropout reads; else in evaluation mode.
        """
        with ExitStack() as stack:
            stack.enter_context(mode(*modules, training=dropout))
            if self.packing is Packing.BY_ROWS:
                stack.enter_context(varlen_attention(*modules))
            if self.checkpointing and torch.is_grad_enabled():
                stack.enter_context(activation_checkpointing(*modules))
            if self.offload and torch.is_grad_enabled() and _has_memory_of_its_own(self.device):
                stack.enter_context(activation_offload())
            if self.compiled is not None:
                stack.enter_context(self.compiled.in_use())
            if not _has_memory_of_its_own(self.device):
                stack.enter_context(bounded_memory(*modules))
            yield

    def micro_batches(
        self,
        batch: Batch,
        *,
        rows: Iterable[int] | None = None,
        select: torch.Tensor | None = None,
        whole_trajectories: bool = False,
    ) -> MicroBatches:
        """This rank's share of the rows, laid out; `select` [L] are the tokens to score."""
        return batch.micro_batches(
            self.token_budget,
            rows=batch.share(range(batch.rows) if rows is None else rows, self.parallel),
            select=select,
            packing=self.packing is not Packing.PADDED,
            share_prompts=self.packing is Packing.BY_ROWS,
            whole_trajectories=whole_trajectories,
        )

    def idle_passes(self, batch: Batch, micros: MicroBatches) -> list[MicroBatch]:
        """What to run after these, without weight: over a sharded model, every rank makes as many passes.

        To be called before the first pass: it, too, is an exchange.
        """
        missing = self.parallel.most(len(micros)) - len(micros)
        if not missing:
            return []
        spare = batch.micro_batches(1, rows=[batch.shortest_row()])
        return missing * [micro.to(self.device) for micro in spare]

    def logprobs(self, model: nn.Module, batch: Batch, select: torch.Tensor) -> torch.Tensor:
        """Of the selected tokens; zero elsewhere [L]."""
        with self._accounted(), torch.no_grad(), self.running(model, dropout=False):
            found = []
            micros = self.micro_batches(batch, select=select)
            idle_passes = self.idle_passes(batch, micros)
            for micro in micros:
                with self.precision():
                    scores = score(model, micro.to(self.device), self.temperature, entropy=False)
                found.append((micro.token, scores.logprob.float()))
            for idle in idle_passes:
                score(model, idle, self.temperature, entropy=False)
            return self._collect(found, len(batch.ids), torch.float)

    def state_values(self, critic: Critic, batch: Batch) -> torch.Tensor:
        """Critic values of the state after each token, in double for the estimators [L]."""
        every = torch.ones_like(batch.action)  # [L]
        with self._accounted(), torch.no_grad(), self.running(critic, dropout=False):
            found = []
            micros = self.micro_batches(batch, select=every)
            idle_passes = self.idle_passes(batch, micros)
            for micro in micros:
                there = micro.to(self.device)
                with self.precision():
                    after = critic(there.ids, there.positions).flatten()  # [B·W]
                found.append((micro.token, after[there.position]))
            for idle in idle_passes:
                critic(idle.ids, idle.positions)
            return self._collect(found, len(batch.ids), torch.double)

    def _collect(
        self, found: Sequence[tuple[torch.Tensor, torch.Tensor]], length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Values [m] at flat token indices [m] as one tensor [L] on the host; zero elsewhere."""
        every = torch.zeros(length, dtype=dtype)  # [L]
        for token, value in found:  # copied last, so that no micro-batch waits for the one before
            every[token] = value.to(dtype).cpu()
        return self.parallel.sum_(every)

    def _accounted(self) -> AbstractContextManager[None]:
        return nullcontext() if self.ledger is None else self.ledger.spend("logprobs")


def _has_memory_of_its_own(device: torch.device) -> bool:
    return device.type != "cpu"


@contextmanager
def mode(*modules: nn.Module, training: bool) -> Iterator[None]:
    """Within it the modules are in training or evaluation mode, which dropout reads."""
    others = [inner for module in modules for inner in module.modules() if inner.training is not training]
    try:
        for inner in others:
            inner.training = training
        yield
    finally:
        for inner in others:
            inner.training = not training


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within it torch's global randomness (dropout) comes from `seed`; afterwards its state is as before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
