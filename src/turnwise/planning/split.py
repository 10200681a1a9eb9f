"""How many GPUs sample and how many learn: the step time of each split, synchronous and asynchronous.

    sampling(r)    = (environment + render + prefill) / r + decode with 1/r of the episodes each
    learning(l)    = (update + logprobs) / l + exchange(l) + rest
    synchronous    = sampling(r) + learning(l) + weights         r = 1 and l = all: what torchrun does, without a copy
    asynchronous   = max(sampling(r), learning(l) + weights)

An iteration of decode takes as long with fewer conversations, so more workers shorten all but decode. The exchange of
gradients and weights is by the data sheet of the link: no run here has used one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from turnwise.planning.cost import Coefficients, StepSettings, predict
from turnwise.planning.hardware import Hardware
from turnwise.planning.measured import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Seconds of a step with so many GPUs for each; a shared one samples and learns by turns."""

    sampling_gpus: int
    learning_gpus: int
    sampling: float
    learning: float
    weights: float
    """To bring new weights to the engines."""

    @property
    def synchronous(self) -> float:
        return self.sampling + self.learning + self.weights

    @property
    def asynchronous(self) -> float:
        return max(self.sampling, self.learning + self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Predicts splits of one recipe on one kind of GPU."""

    coefficients: Coefficients
    hardware: Hardware
    work: Workload
    settings: StepSettings
    trained: int
    sharded: bool
    micro_batches: float
    """Of one update on one GPU."""
    factors: Mapping[str, float]
    """What a calibration multiplies each part by."""

    def parts(self, work: Workload | None = None) -> dict[str, float]:
        """Seconds of each part on one GPU."""
        found = predict(self.coefficients, self.hardware, work or self.work, self.settings)
        parts = {name: value * self.factors.get(name, 1.0) for name, value in found.items() if name != "step"}
        return {**parts, "step": sum(parts.values())}

    def shared(self, gpus: int) -> Split:
        """Rank 0 samples, then all learn."""
        return replace(self._split(1, gpus), weights=0.0)

    def splits(self, gpus: int) -> list[Split]:
        """Every division of the GPUs between sampling and learning."""
        return [self._split(sampling, gpus - sampling) for sampling in range(1, gpus)]

    def _split(self, sampling: int, learning: int) -> Split:
        whole = self.parts()
        own = self.parts(self.work.scaled(1 / sampling))
        shape = self.settings.shape
        return Split(
            sampling_gpus=sampling,
            learning_gpus=learning,
            sampling=own["environment"] + own["render"] + own["prefill"] + own["decode"],
            learning=(whole["update"] + whole["logprobs"]) / learning + self._exchange(learning) + whole["rest"],
            weights=2 * shape.parameters / self.hardware.link,
        )

    def _exchange(self, learning: int) -> float:
        """Gradients once an update; under sharding, weights twice and gradients once a micro-batch."""
        if learning == 1:
            return 0.0
        around = (learning - 1) / learning / self.hardware.link
        if not self.sharded:
            return 2 * 4 * self.trained * around
        return 3 * 4 * self.settings.shape.parameters * around * max(1.0, self.micro_batches / learning)
