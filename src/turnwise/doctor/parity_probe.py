"""Which of sampler and learner is wrong where they disagree, by a third opinion: a forward pass made for the probe.

It scores the probe's tokens with the weights at hand, at the temperature of the recipe and at others.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.parity import FLOAT32_TOLERANCE, HALF_TOLERANCE
from turnwise.checks.tokens import Floats
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import HALF, ForwardRunner
from turnwise.learner.learner import Learner
from turnwise.types import Group

_OTHER_TEMPERATURES = (1.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0, 2.5, 3.0)
_ROWS = 16
"""Rows scored at most: enough for a mean, and quick for a large model."""


class ThirdOpinion:
    """Scores rows by the model itself, with none of the learner's settings but its layout."""

    def __init__(self, learner: Learner, groups: Sequence[Group], *, temperature: float) -> None:
        self._learner, self._temperature = learner, temperature
        few = [t for group in groups for t in group.trajectories if t.turns and t.has_tokens][:_ROWS]
        self._batch = Batch.of([Group(task=t.task, trajectories=(t,)) for t in few], tails=False)
        half = learner.runner.coarsest_dtype(learner.model) in HALF
        self.tolerance = HALF_TOLERANCE if half else FLOAT32_TOLERANCE

    def scored(self, temperature: float) -> Floats:
        """Logprobs of the action tokens at a temperature."""
        return self._read(replace(self._learner.runner, temperature=temperature))

    def sampler_gap(self) -> float:
        """The mean gap between the sampler's logprobs and the model's own."""
        return _gap(_array(self._batch.logprob[self._batch.action]), self.scored(self._temperature))

    def diagnose(self) -> list[Diagnosis]:
        """A diagnosis that names the side which differs from the third opinion; to be made before an update."""
        if not self._batch.rows:
            return []
        sampler = _array(self._batch.logprob[self._batch.action])
        learner, right = self._read(self._learner.runner), self.scored(self._temperature)
        gaps = {"sampler": _gap(sampler, right), "learner": _gap(learner, right)}
        evidence = {f"mean gap of the {name} in nats": gap for name, gap in gaps.items()}
        evidence |= {"rollout.temperature": self._temperature, "tolerance": self.tolerance}
        if gaps["learner"] > self.tolerance:
            return [self._name_learner(learner, evidence)]
        if gaps["sampler"] > self.tolerance:
            return self._name_sampler(sampler, evidence)
        return []

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
        return next((one for one in others if _gap(logprobs, self.scored(one)) <= self.tolerance), None)

    def _read(self, runner: ForwardRunner) -> Floats:
        batch = self._batch
        return _array(runner.logprobs(self._learner.model, batch, batch.action)[batch.action])


def _disagree(cause: str, evidence: dict[str, float]) -> Diagnosis:
    advice = "results of a run would be wrong: report it with the model's name"
    return Diagnosis(kind="sampler_learner_gap", cause=cause, advice=advice, evidence=evidence)


def _array(values: torch.Tensor) -> Floats:
    found: Floats = values.double().numpy()
    return found


def _gap(one: Floats, other: Floats) -> float:
    return float(np.nanmean(abs(one - other)))
