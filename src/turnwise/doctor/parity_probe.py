"""Which of sampler and learner is wrong where they disagree, by a third opinion: a forward pass made for the probe.

It scores the probe's tokens with the weights at hand, at the temperature of the recipe and at others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.parity import FLOAT32_TOLERANCE, HALF_TOLERANCE, tolerate
from turnwise.checks.tokens import Floats
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import HALF, ForwardRunner
from turnwise.learner.learner import Learner
from turnwise.types import Group

_OTHER_TEMPERATURES = (1.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0)
_ROWS = 16
"""Rows scored at most: enough for a mean, and quick for a large model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Of two computations of the same logprobs: `Comparison(gap=0.003, tolerance=0.02)`, the mean gap in nats.

    They neither agree nor differ where the gap is NaN, as none of the logprobs is known to both.
    """

    gap: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.gap <= self.tolerance

    @property
    def differs(self) -> bool:
        return self.gap > self.tolerance


class ThirdOpinion:
    """Scores rows by the model itself, with none of the learner's settings but its layout."""

    def __init__(self, learner: Learner, groups: Sequence[Group], *, temperature: float) -> None:
        self._learner, self._temperature = learner, temperature
        few = [t for group in groups for t in group.trajectories if t.turns and t.has_tokens][:_ROWS]
        self._batch = Batch.of([Group(task=t.task, trajectories=(t,)) for t in few], tails=False)
        half = learner.runner.coarsest_dtype(learner.model) in HALF
        self._tolerance = HALF_TOLERANCE if half else FLOAT32_TOLERANCE

    def scored(self, temperature: float) -> Floats:
        """Logprobs of the action tokens at a temperature."""
        return self._read(replace(self._learner.runner, temperature=temperature))

    def compare_sampler(self) -> "Comparison":
        """The sampler's logprobs beside the model's own."""
        return self._compare(_array(self._batch.logprob[self._batch.action]), self.scored(self._temperature))

    def diagnose(self) -> list[Diagnosis]:
        """A diagnosis that names the side which differs from the third opinion; to be made before an update."""
        if not self._batch.rows:
            return []
        sampler = _array(self._batch.logprob[self._batch.action])
        learner, right = self._read(self._learner.runner), self.scored(self._temperature)
        found = {"sampler": self._compare(sampler, right), "learner": self._compare(learner, right)}
        evidence = {f"mean gap of the {name} in nats": one.gap for name, one in found.items()}
        evidence |= {"rollout.temperature": self._temperature, "tolerance": found["sampler"].tolerance}
        if found["learner"].differs:
            return [self._name_learner(learner, evidence)]
        if found["sampler"].differs:
            return self._name_sampler(sampler, evidence)
        return []

    def _compare(self, one: Floats, other: Floats) -> "Comparison":
        return Comparison(gap=float(np.nanmean(abs(one - other))), tolerance=tolerate(self._tolerance, one, other))

    def _name_learner(self, learner: Floats, evidence: dict[str, float]) -> Diagnosis:
        other = self._find(learner)
        if other is None:
            return _disagree("the learner's forward is not the model's own", evidence)
        return Diagnosis(
            kind="learner_temperature",
            cause=f"the learner scores tokens at temperature {other:g}, and they are sampled at {self._temperature:g}",
            advice="give the learner rollout.temperature: else every ratio and every KL is of another distribution",
            evidence=evidence,
        )

    def _name_sampler(self, sampler: Floats, evidence: dict[str, float]) -> list[Diagnosis]:
        other = self._find(sampler)
        if other == 1.0:
            return [
                Diagnosis(
                    kind="raw_logprobs",
                    cause="the engine reports logprobs before temperature, and samples after it",
                    advice="report those of the tempered distribution (in vLLM: logprobs_mode=processed_logprobs)",
                    evidence=evidence,
                )
            ]
        if other is not None:
            return [
                Diagnosis(
                    kind="sampler_temperature",
                    cause=f"the engine's logprobs are those of temperature {other:g}, not of {self._temperature:g}",
                    advice="pass Sampling.temperature on to the engine",
                    evidence=evidence,
                )
            ]
        return []  # its weights or its forward: the probe of the weights tells

    def _find(self, logprobs: Floats) -> float | None:
        """The temperature at which the model itself gives these logprobs."""
        others = [one for one in _OTHER_TEMPERATURES if one != self._temperature]
        found = {one: self._compare(logprobs, self.scored(one)) for one in others}
        closest = min(found, key=lambda one: found[one].gap)
        return closest if found[closest].agrees else None

    def _read(self, runner: ForwardRunner) -> Floats:
        batch = self._batch
        return _array(runner.logprobs(self._learner.model, batch, batch.action)[batch.action])


def _disagree(cause: str, evidence: dict[str, float]) -> Diagnosis:
    advice = "results of a run would be wrong: report it with the model's name"
    return Diagnosis(kind="sampler_learner_gap", cause=cause, advice=advice, evidence=evidence)


def _array(values: torch.Tensor) -> Floats:
    found: Floats = values.double().numpy()
    return found
