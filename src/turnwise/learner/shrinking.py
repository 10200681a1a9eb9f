"""A device that runs out of memory in the passes of an update: micro-batches shrink, and the passes run again.

Invariant: only passes that have not moved a weight yet are run again. The size that fitted is part of the learner's
state, so that a resumed run adds up in the same order.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

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
    return replace(runner, token_budget=tokens)


def shrunk_state(asked: int, runner: ForwardRunner) -> dict[str, object]:
    """What a checkpoint holds of it: nothing while micro-batches have the size that was asked for."""
    return {} if runner.token_budget == asked else {"microbatch": {"asked": asked, "tokens": runner.token_budget}}


def restore_shrunk(asked: int, runner: ForwardRunner, state: Mapping[str, object]) -> ForwardRunner:
    """Goes on with the size of a checkpoint, unless another is asked for now."""
    saved = state.get("microbatch")
    if not isinstance(saved, Mapping) or saved["asked"] != asked:
        return runner
    return replace(runner, token_budget=int(saved["tokens"]))
