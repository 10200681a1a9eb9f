"""Success rates, pass@k and their confidence intervals: pure functions of counts.

Invariant: tasks are what is sampled at random. Responses to one task are correlated, so the bootstrap resamples whole
tasks; Wilson's interval takes every trial as independent, which holds where each task has one response.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

_Z: Final = 1.959964
_RESAMPLES: Final = 2000


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% score interval of a success rate: `wilson_interval(8, 10)` is (.490, .943)."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    centre = (share + _Z * _Z / (2 * trials)) / (1 + _Z * _Z / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + _Z * _Z / (4 * trials**2)) / (1 + _Z * _Z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(successes: Sequence[int], trials: Sequence[int], *, seed: int) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the success rate, over tasks drawn with replacement.

    `successes[i]` of the `trials[i]` responses to task i succeeded. Where all tasks have the same rate, so
    have all draws: the interval is then a point, and Wilson's is more informative.
    """
    won, tried = np.asarray(successes, np.int64), np.asarray(trials, np.int64)  # [tasks]
    won, tried = won[tried > 0], tried[tried > 0]
    if not len(tried):
        return 0.0, 1.0
    rng = np.random.default_rng(seed)
    draws = (rng.integers(len(tried), size=len(tried)) for _ in range(_RESAMPLES))
    shares = [float(won[draw].sum() / tried[draw].sum()) for draw in draws]
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def pass_at_k(trials: int, successes: int, k: int) -> float:
    """The chance that one of k responses succeeds, without bias: 1 − C(n − c, k) / C(n, k) for c successes of n.

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374). `pass_at_k(4, 1, 2)` is .5.
    """
    assert 0 <= successes <= trials, "no more successes than trials"
    assert 1 <= k <= trials, "k of the trials"
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


def pass_curve(successes: Sequence[int], trials: Sequence[int]) -> dict[int, float]:
    """Mean pass@k over tasks for k = 1, 2, 4, ...: `{1: .25, 2: .41, 4: .6}`; a task with fewer trials is left out."""
    counts = list(zip(trials, successes, strict=True))
    most = max(trials, default=0)
    ks = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return {k: math.fsum(pass_at_k(n, c, k) for n, c in counts if n >= k) / sum(n >= k for n, _ in counts) for k in ks}
