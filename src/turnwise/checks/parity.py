"""Whether the sampler's logprobs are the learner's, for the same tokens under the same weights.

Invariant: which of the two is wrong is decided by the tokens themselves. Tokens drawn from a distribution p have a mean
surprisal −log p(token) equal to the mean entropy of p; so of two who disagree, the one whose logprobs fit the tokens
is right.
"""

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.sampling import MIN_TOKENS, SIGMAS, calibration
from turnwise.checks.tokens import TokenScores

FLOAT32_TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05
"""Mean gap in nats from which two computations of one logprob disagree by more than rounding."""


def check_parity(scores: TokenScores, *, tolerance: float) -> list[Diagnosis]:
    """A diagnosis where the mean gap exceeds the tolerance; it names the side that is wrong, if the tokens tell."""
    known = scores.known
    if not len(known):
        return []
    gap = float(abs(known.sampler - known.learner).mean())
    if gap <= tolerance:
        return []
    evidence = {"mean gap in nats": gap, "tolerance": tolerance, "tokens": float(len(known))}
    fit = calibration(known.learner, known.entropy)
    if len(known) < MIN_TOKENS or fit is None:
        return [_gap(evidence)]
    evidence["sigmas between learner and tokens"] = fit
    if abs(fit) > SIGMAS:
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
        cause="sampler and learner disagree about the same tokens, and the learner's distribution is not the sampled one",
        advice="run `turnwise doctor RECIPE`: it tells stale weights, a wrong temperature and a wrong forward apart",
        evidence=evidence,
    )
