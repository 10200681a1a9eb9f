"""A device that runs out of memory: one line, and settings that a resumed run may lower.

Invariant: these settings change the order of sums, and so their last digits, but not what is computed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from turnwise.errors import ModelError

MEMORY_SETTINGS = (
    "sft.tokens_per_microbatch",
    "sft.compile",
    "learner.tokens_per_microbatch",
    "learner.compile",
    "learner.skip_zero_rows",
    "learner.checkpointing",
    "learner.activation_offload",
    "learner.shard",
    "engine",
)
TO_LOAD = "it has no room for the model: end other programs there, or take a smaller one"
TO_SAMPLE = "lower engine.slots, or end other programs there"
TO_TRAIN = (
    "lower learner.tokens_per_microbatch (in the cold start, sft.tokens_per_microbatch) or engine.slots, set "
    "learner.checkpointing or learner.activation_offload, or end other programs there"
)


@contextmanager
def one_line_out_of_memory(what_helps: str) -> Iterator[None]:
    """Turns a full device into a one-line error, even where every episode of a rollout reports it."""
    try:
        yield
    except (torch.OutOfMemoryError, ExceptionGroup) as error:
        if not _is_out_of_memory(error):
            raise
        raise ModelError(f"the device is out of memory: {what_helps}") from error


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_out_of_memory, error.exceptions))
    return isinstance(error, torch.OutOfMemoryError)
