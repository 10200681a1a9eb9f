"""Success rates, pass@k and their confidence intervals: pure functions of counts.

Invariant: tasks are what is sampled at random. Samples of one task are correlated, so with several of them the unit is
the task; Wilson's interval takes every trial as independent, which holds where each task has one sample.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from typing import Final

_Z: Final = 1.959964


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% score interval of a success rate: `wilson_interval(8, 10)` is (.490, .943)."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    centre = (share + _Z * _Z / (2 * trials)) / (1 + _Z * _Z / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + _Z * _Z / (4 * trials**2)) / (1 + _Z * _Z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_interval(successes: Sequence[int], trials: Sequence[int]) -> tuple[float, float]:
    """The 95% interval of the success rate of a random task, from several samples per task; tasks count alike.

    `successes[i]` of the `trials[i]` samples of task i succeeded; a task without a scored sample says nothing.
    Student's t over the m tasks' own rates and two pseudo-tasks, one always solved and one never: c ± t(.975, m + 1) ·
    s / √(m + 2) over the m + 2 rates, within [0, 1]. Agresti and Coull 1998 ("Approximate Is Better than 'Exact'") add
    such pseudo-trials to a proportion; here the task is the unit. So s is not zero where all rates agree. A task of few
    samples has a noisier rate, and s includes that noise. 20 tasks of 4, all solved: (.860, 1).
    """
    rates = [won / tried for won, tried in zip(successes, trials, strict=True) if tried] + [0.0, 1.0]
    if len(rates) == 2:
        return 0.0, 1.0
    centre = statistics.fmean(rates)
    half = student_t(len(rates) - 1) * statistics.stdev(rates) / math.sqrt(len(rates))
    return max(0.0, centre - half), min(1.0, centre + half)


@functools.cache
def student_t(freedom: int, level: float = 0.95) -> float:
    """The t for which a Student variable of so many degrees of freedom lies within ±t with probability `level`."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t), by the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


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
