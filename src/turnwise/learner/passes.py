"""How a pass through a model is run: its mode, precision and randomness, each put back afterwards.

Shapes: L tokens of all rows, B rows padded to W (or B = 1 and rows end to end).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from turnwise.learner.batch import Batch, MicroBatch
from turnwise.learner.critic import Critic
from turnwise.learner.ranks import ALONE, Ranks
from turnwise.learner.score import score


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes without gradients over a whole batch, a micro-batch at a time; results come back to the CPU.

    Each rank runs its own share of the rows, and every rank is given the results of all.
    """

    device: torch.device
    autocast: torch.dtype | None
    """The precision of the forward pass; None is that of the weights."""
    temperature: float
    """The sampler's."""
    token_budget: int
    """The most tokens, padding included, in a micro-batch."""
    packing: bool = False
    """Rows of a micro-batch lie end to end, and are not padded."""
    ranks: Ranks = ALONE

    def precision(self) -> AbstractContextManager[object]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def logprobs(self, model: nn.Module, batch: Batch, select: torch.Tensor) -> torch.Tensor:
        """Of the selected tokens; zero elsewhere [L]."""
        logprob = torch.zeros(len(batch.ids))  # [L]
        with torch.no_grad(), mode(model, training=False):
            for micro in self._own(batch, select):
                with self.precision():
                    scores = score(model, micro.to(self.device), self.temperature, entropy=False)
                logprob[micro.token] = scores.logprob.float().cpu()
        return self.ranks.sum_(logprob)

    def state_values(self, critic: Critic, batch: Batch) -> torch.Tensor:
        """The critic's word on the state after each token, in double for the estimators [L]."""
        value = torch.zeros(len(batch.ids), dtype=torch.double)  # [L]
        every = torch.ones_like(batch.action)  # [L]
        with torch.no_grad(), mode(critic, training=False):
            for micro in self._own(batch, every):
                there = micro.to(self.device)
                with self.precision():
                    after = critic(there.ids, there.positions).flatten().cpu()  # [B·W]
                value[micro.token] = after[micro.position].double()
        return self.ranks.sum_(value)

    def _own(self, batch: Batch, select: torch.Tensor) -> list[MicroBatch]:
        rows = batch.share(range(batch.rows), self.ranks.rank, self.ranks.world)
        return batch.micro_batches(self.token_budget, rows=rows, select=select, packing=self.packing)


@contextmanager
def mode(*modules: nn.Module, training: bool) -> Iterator[None]:
    """Within it the modules train or evaluate; dropout and gradient checkpointing ask."""
    before = [module.training for module in modules]
    for module in modules:
        module.train(training)
    try:
        yield
    finally:
        for module, was in zip(modules, before, strict=True):
            module.train(was)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within it torch's own randomness (dropout) is that of `seed`; outside, nothing has happened."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
