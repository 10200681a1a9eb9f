"""Whether logprobs are logprobs: finite, and of probabilities of at most 1."""

from collections.abc import Sequence

import numpy as np

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.tokens import flatten
from turnwise.types import Trajectory

_ROUNDING = 1e-4
"""A certain token's logprob may come out above 0 by this much."""


def check_numbers(trajectories: Sequence[Trajectory]) -> list[Diagnosis]:
    """A diagnosis where a recorded logprob is NaN, infinite or above 0."""
    logprobs = flatten(turn.logprobs for t in trajectories for turn in t.turns)
    infinite, positive = int((~np.isfinite(logprobs)).sum()), int((logprobs > _ROUNDING).sum())
    found = []
    if infinite:
        found.append(
            Diagnosis(
                kind="nan_logprobs",
                cause="the engine records logprobs that are not finite",
                advice="a token was not sampled but forced, or logits overflow: sample in float32 or bfloat16, "
                "and let the engine return only ids it drew",
                evidence={"logprobs not finite": float(infinite), "of": float(len(logprobs))},
            )
        )
    if positive:
        found.append(
            Diagnosis(
                kind="positive_logprobs",
                cause="the engine records logprobs above 0, which no probability has",
                advice="it returns logits or a ratio in place of logprobs: return log-softmax values",
                evidence={"logprobs above 0": float(positive), "of": float(len(logprobs))},
            )
        )
    return found
