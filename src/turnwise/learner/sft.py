"""Supervised fine-tuning on demonstrations: the batch, masks and weights of RL, with the likelihood as the loss.

loss = − Σ weight · log π(token)        over the demonstrator's actions, and not its context

unless `context_weight` gives context tokens a weight too. A model that has never seen text learns to copy from its
context much sooner when it also learns to predict that context.
Dropout is as the model has it: here it regularises, and there is no probability ratio for its noise to disturb.
"""

import torch
from torch import nn

from turnwise.compute.layout import MicroBatch
from turnwise.compute.score import score
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.optimizer import Optimizer
from turnwise.learner.parallel import SINGLE, Parallel


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
    parallel: Parallel = SINGLE,
) -> dict[str, float]:
    """One optimizer step on a batch of demonstrations: `{"sft/loss": 1.7, "sft/grad_norm": .4, "sft/lr": 1e-4}`.

    Every rank is given the whole batch, and an optimizer made with the same `parallel`.
    """
    device = next(model.parameters()).device
    weights = batch.weights(range(batch.rows), "token") * torch.where(batch.action, 1.0, context_weight)  # [L]
    weights = (weights / weights.sum()).to(device)
    total = torch.zeros((), device=device)
    runner = ForwardRunner(
        device=device, autocast=autocast, temperature=1.0, token_budget=token_budget, parallel=parallel
    )
    with runner.running(model, dropout=True, backward=True):
        for micro in runner.micro_batches(batch):
            with runner.precision():
                loss = sft_loss(model, micro.to(device), weights)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
    parallel.sum_gradients(model.parameters())
    taken = optimizer.step(step)
    return {"sft/loss": float(parallel.sum_(total)), "sft/grad_norm": taken.grad_norm, "sft/lr": optimizer.lr(step)}
