"""Bias and variance of an estimator's gradient at an equal budget of episodes.

Invariant: only the estimator differs from one measurement to the next; the loss is the plain policy gradient, and the
exact gradient is the oracle's. Shapes: D batches, P parameters.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from turnwise.credit.settings import CreditSettings
from turnwise.oracle.critic import wrong_values
from turnwise.oracle.deck import Deck
from turnwise.oracle.exact import consult
from turnwise.oracle.world import World

CriticKind: TypeAlias = Literal["exact", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of the estimate g that one batch of N episodes gives, beside the exact gradient ∇J, with μ = E g.

    Estimators that divide by a std have a scale of their own, which counts in `bias` and `variance` and which a
    learning rate makes up for: compare those by `cosine` and `snr`, which know no length. The sampling error of a
    measurement is taken out of the squares that it is made of, in the mean.
    """

    bias: float
    """‖μ − ∇J‖ / ‖∇J‖: 0 is unbiased."""
    variance: float
    """N · tr Cov(g) / ‖∇J‖²: that of one episode's share, so batches of any size compare."""
    snr: float
    """(μ · ∇J / ‖∇J‖) / √tr Cov(g): how many of its standard deviations a batch's step goes the right way."""
    cosine: float
    """Of the angle between μ and ∇J: the bias no learning rate can make up for; NaN when μ cannot be told from 0."""
    scale: float
    """(μ · ∇J) / ‖∇J‖²: how long μ is along ∇J; (n − 1)/n for Dr. GRPO in groups of n."""


def measure(
    world: World,
    credit: CreditSettings,
    *,
    groups: int,
    group_size: int,
    samples: int,
    seed: int,
    critic: CriticKind = "exact",
) -> Moments:
    """Draws `samples` batches of `groups` × `group_size` episodes and measures the gradients they give.

    The exact gradient is that of the return without `max_turns`: where it truncates an episode, the rest counts at its
    exact value. So an estimator that takes truncation for termination shows a bias there.
    `critic` is read by estimators that have one.
    """
    oracle = consult(world)
    values = None
    if credit.needs_critic:
        values = oracle.values if critic == "exact" else wrong_values(oracle)
    deck = Deck(oracle, values)
    drawn = torch.multinomial(
        oracle.probability,
        samples * groups * group_size,
        replacement=True,
        generator=torch.Generator().manual_seed(seed),
    ).view(samples, groups, group_size)
    estimates = deck.push(drawn, credit) @ oracle.jacobian  # [D, P]
    return _moments(estimates, oracle.gradient(oracle.payoff(oracle.values)), groups * group_size)


def _moments(estimates: torch.Tensor, exact: torch.Tensor, episodes: int) -> Moments:
    mean = estimates.mean(0)  # [P]
    variance = float(estimates.var(0).sum())
    error = variance / len(estimates)
    length = float(exact.norm())
    along = float(mean @ exact) / length
    mean_length = math.sqrt(max(float(mean.square().sum()) - error, 0.0))
    return Moments(
        bias=math.sqrt(max(float((mean - exact).square().sum()) - error, 0.0)) / length,
        variance=episodes * variance / length**2,
        snr=along / math.sqrt(variance) if variance else math.inf,
        cosine=max(-1.0, min(1.0, along / mean_length)) if mean_length else math.nan,
        scale=along / length,
    )
