"""Whether tokens were drawn from the distribution that is recorded for them.

For a token x drawn from p, −log p(x) has the mean H(p). So the sum over tokens of (−logprob − entropy) is a sum of
martingale differences, whose standard deviation the tokens show themselves, but for unlikely ones that happen not to
come up: so it is at least that of choices with the same entropies between a likely token and many unlikely ones. Of a
normal sum, 5 standard deviations are one false alarm in a million looks (tests/doctor/test_statistics.py looks 800
times at synthetic policies).
"""

import math

import numpy as np

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.tokens import Floats, TokenScores

SIGMAS = 5.0
MIN_TOKENS = 256
_MIN_NATS = 50.0
"""Total entropy below which a policy is too sure of its tokens for them to tell anything."""
_MIN_SHARE = 0.05
"""Of the entropy: a smaller difference is rounding, not another distribution."""


def check_sampling(scores: TokenScores) -> list[Diagnosis]:
    """A diagnosis where the tokens do not fit the distribution that sampler and learner agree on."""
    known = scores.known
    fit = calibration(known.learner, known.entropy)
    if fit is None or abs(fit) <= SIGMAS:
        return []
    surprisal, entropy = float(-known.learner.mean()), float(np.nanmean(known.entropy))
    likelier = "likelier" if surprisal < entropy else "less likely"
    return [
        Diagnosis(
            kind="sampling_distribution",
            cause=f"sampled tokens are {likelier} than their recorded distribution allows",
            advice="the engine samples at another temperature, or with top-k or top-p, than it reports: "
            "compare its sampling settings with rollout.temperature",
            evidence={
                "mean surprisal": surprisal,
                "mean entropy": entropy,
                "sigmas": fit,
                "tokens": float(len(known)),
            },
        )
    ]


def calibration(logprob: Floats, entropy: Floats) -> float | None:
    """How many standard deviations the surprisal of tokens is off its expectation; None if they are too few to say.

    0 where the difference is smaller than rounding may make it.
    """
    known = np.isfinite(logprob) & np.isfinite(entropy)
    surprisal, expected = -logprob[known], entropy[known]
    if len(expected) < MIN_TOKENS or expected.sum() < _MIN_NATS:
        return None
    difference = surprisal - expected
    if abs(difference.sum()) < _MIN_SHARE * expected.sum():
        return 0.0
    variance = max(float((difference**2).sum()), float(_varentropy(expected).sum()))
    return float(difference.sum()) / math.sqrt(variance)


_UNLIKELY = 100
"""Tokens among which what the likeliest leaves is even: so the surprisal of SmolLM2's replies in a game scattered as
much as this says, 25 to 28 nats in 1,800 tokens, but for one step in 8 in which unlikely ones did not come up (10)."""
_CHANCES = np.concatenate([np.geomspace(1e-12, 0.02, 400), np.linspace(0.0201, _UNLIKELY / (_UNLIKELY + 1), 2000)])
_ENTROPIES = -(_CHANCES * np.log(_CHANCES / _UNLIKELY) + (1 - _CHANCES) * np.log1p(-_CHANCES))
_VARENTROPIES = _CHANCES * (1 - _CHANCES) * np.log((1 - _CHANCES) / _CHANCES * _UNLIKELY) ** 2


def _varentropy(entropy: Floats) -> Floats:
    """The variance of the surprisal of such a choice with this entropy; 0 above that of an even one."""
    variance: Floats = np.interp(entropy, _ENTROPIES, _VARENTROPIES, right=0.0)
    return variance
