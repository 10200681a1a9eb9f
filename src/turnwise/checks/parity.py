"""Whether the sampler's logprobs are the learner's, for the same tokens under the same weights.

Invariant: which of the two is wrong is decided by the tokens themselves. Tokens drawn from a distribution p have a mean
surprisal −log p(token) equal to the mean entropy of p; so of two who disagree, the one whose logprobs fit the tokens
is right.
"""

import numpy as np

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.sampling import SIGMAS, calibration
from turnwise.checks.tokens import Floats, TokenScores

FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 0.02
"""Mean gap in nats from which two computations of one logprob disagree by more than rounding; in our runs on a GPU it
was at most .0045 in bfloat16. Of tokens with a mean surprisal above 1 it is so many times as much: an unlikely token's
logprob is a difference of larger numbers, and untrained models on a CPU had .036 at 4 nats."""


def tolerate(tolerance: float, one: Floats, other: Floats) -> float:
    """The tolerance for two computations of some tokens' logprobs: more for tokens that both hold unlikely."""
    return tolerance * max(1.0, min(-float(np.nanmean(one)), -float(np.nanmean(other))))


def check_parity(scores: TokenScores, *, tolerance: float) -> list[Diagnosis]:
    """A diagnosis where the mean gap exceeds the tolerance; it names the side that is wrong, if the tokens tell."""
    known = scores.known
    if not len(known):
        return []
    gap = float(abs(known.sampler - known.learner).mean())
    tolerance = tolerate(tolerance, known.learner, known.sampler)
    if gap <= tolerance:
        return []
    evidence = {"mean gap in nats": gap, "tolerance": tolerance, "tokens": float(len(known))}
    fits = {"learner": calibration(known.learner, known.entropy), "sampler": calibration(known.sampler, known.entropy)}
    evidence |= {f"sigmas between the {name} and the tokens": fit for name, fit in fits.items() if fit is not None}
    learner_fits, sampler_fits = (fit is not None and abs(fit) <= SIGMAS for fit in fits.values())
    if not learner_fits or sampler_fits:
        return [_gap(evidence)]
    return [
        Diagnosis(
            kind="raw_logprobs",
            cause="the engine reports logprobs of another distribution than the one it sampled from",
            advice="report them after temperature, top-k and top-p (in vLLM: logprobs_mode=processed_logprobs)",
            evidence=evidence,
        )
    ]


def _gap(evidence: dict[str, float]) -> Diagnosis:
    return Diagnosis(
        kind="sampler_learner_gap",
        cause="sampler and learner disagree about the logprobs of the same tokens under the same weights",
        advice="run `turnwise doctor RECIPE`: it tells stale weights, a wrong temperature and a wrong forward apart",
        evidence=evidence,
    )
