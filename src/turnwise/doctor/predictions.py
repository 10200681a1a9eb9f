"""What a run will take in time, memory and disk, predicted from the probe's first half and tried on its second.

Invariant: every prediction comes with the error it had on the half that it was not made from.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from turnwise.compute.host_memory import free_memory, read_kernel_bytes
from turnwise.config import Config
from turnwise.doctor.probe import ProbeStep
from turnwise.training.disk import checkpoint_bytes

_BYTES_PER_TOKEN = 24.0
"""Of a stored trajectory, an upper bound: ids, logprobs, the learner's numbers and text, compressed."""

_STATUS = "/proc/self/status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`Prediction(value=41.0, error=0.08)`: the error is that on the second half, as a share of what was measured."""

    value: float
    error: float


class PeakMemory:
    """The most memory in use since `reset`: of the device, or of this process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> float:
        if self._device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self._device))
        return read_kernel_bytes(_STATUS, "VmHWM:")

    def in_use(self) -> float:
        return (
            float(torch.cuda.memory_allocated(self._device))
            if self._device.type == "cuda"
            else read_kernel_bytes(_STATUS, "VmRSS:")
        )

    def available(self) -> float:
        """What this process may have in all."""
        if self._device.type == "cuda":
            unused, _ = torch.cuda.mem_get_info(self._device)
            return float(unused) + float(torch.cuda.memory_reserved(self._device))
        return free_memory() + self.in_use()


def predict_seconds(first: ProbeStep, second: ProbeStep, *, episodes: int, config: Config) -> Prediction:
    """Seconds of a full training step: the probe's, by the number of tokens."""
    rollout, update = first.rollout_seconds / first.tokens, first.update_seconds / first.tokens
    guess, taken = (rollout + update) * second.tokens, second.rollout_seconds + second.update_seconds
    pace = (taken + first.rollout_seconds + first.update_seconds) / (first.tokens + second.tokens)
    whole = config.rollout.groups_per_step * config.rollout.group_size
    tokens = (first.tokens + second.tokens) / (2 * episodes) * whole
    return Prediction(value=pace * tokens, error=abs(guess - taken) / taken)


def predict_memory(
    base: float, peaks: tuple[float, float], steps: tuple[ProbeStep, ProbeStep], *, episodes: int, config: Config
) -> Prediction:
    """The peak of a full step in bytes: what is there before an update, and what each token of a micro-batch adds."""
    budget = config.learner.first_microbatch
    first, second = (min(step.tokens, budget) for step in steps)
    per_token = max(0.0, peaks[0] - base) / first
    guess = base + per_token * second
    whole = config.rollout.groups_per_step * config.rollout.group_size
    full = min(budget, steps[1].tokens / episodes * whole)
    return Prediction(value=base + per_token * full, error=abs(guess - peaks[1]) / peaks[1])


def predict_disk(config: Config, model: torch.nn.Module, tokens_per_step: float) -> float:
    """Bytes that the run will hold at most: checkpoints and trajectories."""
    stored, most = _BYTES_PER_TOKEN * tokens_per_step * config.steps, config.trajectories.max_gigabytes
    return checkpoint_bytes(config, model) + (stored if most is None else min(stored, most * 1e9))
