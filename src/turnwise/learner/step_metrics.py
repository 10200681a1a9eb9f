"""Metrics of optimizer steps: summed over micro-batches on the device, then over ranks on the host.

Invariant: only `measure_step` waits for the device, and it is called when all steps of an update are launched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from turnwise.compute.layout import MicroBatch
from turnwise.learner.optimizer import Optimizer, OptimizerStep
from turnwise.learner.parallel import Parallel

_LOSSES = ("policy/loss", "policy/surrogate_loss", "critic/loss")
_WEIGHTS = {"policy/sampler_gap": "sampled", "policy/clip_fraction": "every"}
"""What a mean is taken over, if not over all tokens that were read. A token of a row that was left out has no advantage
and so is not clipped."""

Measured: TypeAlias = tuple[dict[str, float], OptimizerStep]
"""The metrics of one mini-batch, and the result of its optimizer step."""
DeviceScalars: TypeAlias = dict[str, torch.Tensor]
"""Numbers [] by name; on a GPU, not known to the host before they are fetched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """An optimizer step that was launched, and what it measured."""

    sums: DeviceScalars
    """This rank's share of sums over the mini-batch, by metric."""
    maxima: DeviceScalars
    """Largest values on this rank, by metric."""
    norm: torch.Tensor
    """[]: of the gradient."""
    weight: torch.Tensor
    """[]: sum of the weights of all trained tokens."""
    read_weight: torch.Tensor
    """[]: sum of the weights of those in rows that were read."""
    sampled_weight: torch.Tensor
    """[]: sum of the weights of those that were read and sampled."""


def measure_step(pending: PendingStep, optimizer: Optimizer, step: int, parallel: Parallel) -> Measured:
    """Fetches what a step measured on all ranks, and its result."""
    own = {
        "norm": pending.norm,
        "every": pending.weight,
        "read": pending.read_weight,
        "sampled": pending.sampled_weight,
    }
    sums, maxima, scalars = _fetch(pending.sums, pending.maxima, own)
    result = optimizer.settle(step, scalars["norm"])
    metrics: dict[str, float] = {}
    for name, total in _add_up(parallel.gather(sums)).items():
        weight = scalars[_WEIGHTS.get(name, "read")]
        # Losses are sums, as their gradients are; others are means, whether or not the weights sum to one.
        metrics[name] = total if name in _LOSSES else total / weight
    for of_rank in parallel.gather(maxima):
        metrics |= {name: max(value, metrics.get(name, value)) for name, value in of_rank.items()}
    return metrics, result


def measure_reading(micros: Sequence[MicroBatch], parallel: Parallel, *, given: int | None) -> dict[str, float]:
    """The share of padding in what the models read, and the share of the rows that shared prompts saved.

    With `given`, the number of tokens in all passes over the batch, also the share in rows that were left out.
    """
    own = [(micro.tokens, micro.ids.numel(), micro.shared) for micro in micros]
    read = torch.tensor(own, dtype=torch.long).reshape(-1, 3).sum(0)
    tokens, places, shared = parallel.sum_(read).tolist()
    skipped = {} if given is None else {"batch/skipped_share": 1 - (tokens + shared) / given}
    return {"batch/padding_share": 1 - tokens / places, "batch/shared_share": shared / (tokens + shared), **skipped}


def summarise_steps(area: str, steps: Sequence[Measured]) -> dict[str, float]:
    """Means over the steps whose gradient was finite, and how many steps were taken, idle and skipped."""
    sound = [metrics | {f"{area}/grad_norm": step.grad_norm} for metrics, step in steps if step.outcome != "skipped"]
    means = {name: sum(metrics[name] for metrics in sound) / len(sound) for name in (sound[0] if sound else ())}
    for outcome in ("taken", "idle", "skipped"):
        means[f"{area}/steps_{outcome}"] = sum(step.outcome == outcome for _, step in steps)
    return means


def _add_up(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums by name; a rank whose share was empty measured nothing."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _fetch(*several: DeviceScalars) -> list[dict[str, float]]:
    """All scalars in one transfer: one after the other would wait for the device each time."""
    values = iter(torch.stack([scalar.double() for scalars in several for scalar in scalars.values()]).tolist())
    return [{name: next(values) for name in scalars} for scalars in several]
