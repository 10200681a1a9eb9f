"""Micro-batches that fit the device: smaller ones where it runs out of memory, larger ones where there is room.

Invariant: only passes that have not moved a weight yet are run again, and sizes grow between updates alone. The size in
force is part of the learner's state, so that a resumed run adds up in the same order.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from turnwise.compute.device_memory import PassMemory
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.parallel import SINGLE

_logger = logging.getLogger(__name__)
T = TypeVar("T")


def run_or_shrink(work: Callable[[], T], shrink: Callable[[torch.OutOfMemoryError], None]) -> T:
    """What `work` returns, after a `shrink` for each time that it ran out of memory."""
    while True:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            full = error.with_traceback(None)  # its frames hold the tensors of the pass
        shrink(full)


def shrink_runner(
    runner: ForwardRunner, batch: Batch, error: torch.OutOfMemoryError, *modules: nn.Module, setting: str
) -> ForwardRunner:
    """The same runner with micro-batches of half the size, and no gradients left of the pass that failed.

    Raises the error where a micro-batch is one row already, or where other ranks wait for this one.
    """
    longest = batch.longest_row
    if runner.parallel is not SINGLE or runner.token_budget <= longest:
        raise error
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        parameter.grad = None
    if runner.device.type == "cuda":
        torch.cuda.empty_cache()
    tokens = runner.token_budget // 2
    while tokens >= batch.rows * longest:  # all rows would be one micro-batch again
        tokens //= 2
    tokens = max(longest, tokens)
    _logger.warning(
        "the device is out of memory: %s is %d from here on, it was %d", setting, tokens, runner.token_budget
    )
    return replace(runner, token_budget=tokens, most_tokens=tokens)


def watch_memory(runner: ForwardRunner) -> PassMemory | None:
    """To be called before passes after which micro-batches may grow; None where they may not."""
    grows = runner.token_budget < runner.most_tokens and runner.device.type == "cuda" and runner.parallel is SINGLE
    return PassMemory(runner.device) if grows else None


def grow_runner(runner: ForwardRunner, batch: Batch, memory: PassMemory | None) -> ForwardRunner:
    """The same runner with micro-batches of twice the size, where the batch filled more than one and two would fit."""
    if memory is None or len(batch.ids) <= runner.token_budget or not memory.fits(2.0):
        return runner
    return replace(runner, token_budget=min(2 * runner.token_budget, runner.most_tokens))


def fitted_state(asked: int | None, first: int, runner: ForwardRunner) -> dict[str, object]:
    """What a checkpoint holds of it: nothing while micro-batches have the size that they had at first."""
    if runner.token_budget == first:
        return {}
    return {"microbatch": {"asked": asked, "tokens": runner.token_budget, "most": runner.most_tokens}}


def restore_fitted(asked: int | None, runner: ForwardRunner, state: Mapping[str, object]) -> ForwardRunner:
    """Goes on with the size of a checkpoint, unless another is asked for now."""
    saved = state.get("microbatch")
    if not isinstance(saved, Mapping) or saved["asked"] != asked:
        return runner
    tokens = int(saved["tokens"])
    return replace(runner, token_budget=tokens, most_tokens=int(saved.get("most", tokens)))
