"""Learning from demonstrations: the same batch, masks and weights as in RL, and the likelihood as the loss.

loss = − Σ weight · log π(token)        over the demonstrator's actions, and not what it read

unless `context_weight` says how much a token that was read weighs beside one that was said. A model that has never
seen text learns to copy from what it reads much sooner when it also learns to expect what it reads.
"""

import torch
from torch import nn

from turnwise.compute.layout import MicroBatch
from turnwise.compute.score import score
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import Passes
from turnwise.learner.optimizer import Optimizer


def sft_loss(model: nn.Module, micro: MicroBatch, weights: torch.Tensor) -> torch.Tensor:
    """The loss of a micro-batch's trained tokens, with `Batch.weights` [L] of its whole mini-batch."""
    logprob = score(model, micro, temperature=1.0, entropy=False).logprob  # [m]
    return -(weights[micro.token] * logprob).sum()


def sft_step(
    model: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    *,
    step: int,
    token_budget: int,
    context_weight: float = 0.0,
    autocast: torch.dtype | None = None,
) -> dict[str, float]:
    """One optimizer step on a batch of demonstrations: `{"sft/loss": 1.7, "sft/grad_norm": .4, "sft/lr": 1e-4}`."""
    device = next(model.parameters()).device
    weights = batch.weights(range(batch.rows), "token") * torch.where(batch.action, 1.0, context_weight)  # [L]
    weights = (weights / weights.sum()).to(device)
    total = torch.zeros((), device=device)
    passes = Passes(device=device, autocast=autocast, temperature=1.0, token_budget=token_budget)
    with passes.running(model, training=True):
        for micro in passes.micro_batches(batch):
            with passes.precision():
                loss = sft_loss(model, micro.to(device), weights)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
    taken = optimizer.step(step)
    return {"sft/loss": float(total), "sft/grad_norm": taken.grad_norm, "sft/lr": optimizer.lr(step)}
