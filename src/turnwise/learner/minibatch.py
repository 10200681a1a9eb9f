"""What an update is made of: a mini-batch as one rank runs it, and the steps of all of them.

Shapes: L tokens of all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from turnwise.compute.layout import MicroBatch, MicroBatches
from turnwise.learner.step_metrics import PendingStep
from turnwise.learner.token_log import TokenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """This rank's micro-batches of a mini-batch, with weights [L] normalised over every rank's."""

    micros: MicroBatches
    """Of the rows that are read."""
    idle: Sequence[MicroBatch]
    """Passes without weight, while other ranks run more micro-batches."""
    weights: torch.Tensor
    """[L] float: of each trained token in the policy's loss."""
    read_weights: torch.Tensor
    """[L] float: the same in the rows that are read on some rank, and 0 elsewhere."""
    value_weights: torch.Tensor | None
    """[L] float: of each token in the critic's loss, which may cover some tokens alone; None without a critic."""
    sampler_logprob: torch.Tensor
    """[L] float: zero where nothing was sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """All steps of an update, launched, with results still to be fetched."""

    policy: list[PendingStep]
    critic: list[PendingStep]
    micros: list[MicroBatch]
    warming_up: bool
    log: TokenLog
