"""What is claimed of every estimator, one entry each: the gradient it gives in the mean.

`Unbiased`: in the mean, `scale(n)` times the exact gradient, in groups of n. Of what? Of all that is paid; and with a
critic, where our limit cut an episode off, of what the critic says was still to come (the exact value of the world that
goes on, if the critic is exact).
`Biased`: in the mean, what its formula gives when written out over every group that can be drawn. (Of those that
normalise over the batch, the mean is taken in the smallest world alone; `test_layouts` holds them to their formula in
every world.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, prod
from typing import Literal

import torch

from credit_reference import credit_by_hand
from turnwise.credit.estimate import CreditSettings
from turnwise.oracle import WORLDS, Deck, consult, expected_gradient, spans_the_batch, wrong_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbiased:
    """`critics`: those it is unbiased with; `any` is one that is wrong everywhere."""

    credit: CreditSettings
    critics: tuple[Literal["exact", "any"], ...] = ()
    scale: Callable[[int], float] = lambda n: 1.0
    group_size: tuple[int, ...] = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Biased:
    credit: CreditSettings
    critics: tuple[Literal["exact", "any"], ...] = ()


Claim = Unbiased | Biased


def _c(estimator: str, **settings: float | bool) -> CreditSettings:
    return CreditSettings.model_validate({"estimator": estimator, **settings})


CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "gae": (
        # λ = 1: the value is a baseline and nothing else. λ < 1: it also stands in for what was earned.
        Unbiased(credit=_c("gae", whiten=False), critics=("exact", "any"), group_size=(1,)),
        Unbiased(credit=_c("gae", lam=0.6, whiten=False), critics=("exact",), group_size=(1,)),
        Unbiased(credit=_c("gae", lam=0.0, whiten=False), critics=("exact",), group_size=(1,)),
        Biased(credit=_c("gae", lam=0.6, whiten=False), critics=("any",)),
        Biased(credit=_c("gae", gamma=0.9, lam=0.8, whiten=False), critics=("exact", "any")),
        Biased(credit=_c("gae", gamma=0.9, lam=0.8), critics=("exact",)),
    ),
    "turn-gae": (
        Unbiased(credit=_c("turn-gae", whiten=False), critics=("exact", "any"), group_size=(1,)),
        Unbiased(credit=_c("turn-gae", turn_lam=0.6, whiten=False), critics=("exact",), group_size=(1,)),
        Biased(credit=_c("turn-gae", turn_gamma=0.9, turn_lam=0.6, whiten=False), critics=("any",)),
        Biased(credit=_c("turn-gae", turn_lam=0.6), critics=("any",)),
    ),
    "bilevel-gae": (
        Unbiased(credit=_c("bilevel-gae", whiten=False), critics=("exact", "any"), group_size=(1,)),
        Unbiased(credit=_c("bilevel-gae", lam=0.3, whiten=False), critics=("exact",), group_size=(1,)),
        # The value of a turn is that of its last token's state, and which token is the last is the agent's own choice:
        # so with λ' < 1 even an exact critic leaves a bias, wherever turns differ in length.
        Biased(credit=_c("bilevel-gae", turn_lam=0.6, whiten=False), critics=("exact",)),
        Biased(
            credit=_c("bilevel-gae", gamma=0.9, lam=0.7, turn_gamma=0.95, turn_lam=0.6, whiten=False), critics=("any",)
        ),
        Biased(credit=_c("bilevel-gae", lam=0.7), critics=("any",)),
    ),
    "grpo": (
        Unbiased(credit=_c("grpo", divide_by_std=False), scale=lambda n: (n - 1) / n),
        Biased(credit=_c("grpo")),
    ),
    "dr-grpo": (Unbiased(credit=_c("dr-grpo"), scale=lambda n: (n - 1) / n),),
    "rloo": (Unbiased(credit=_c("rloo")),),
    "reinforce++": (Biased(credit=_c("reinforce++")), Biased(credit=_c("reinforce++", gamma=0.9))),
    "reinforce++-baseline": (Biased(credit=_c("reinforce++-baseline")),),
    "reward-to-go": (
        # In a group of one it is REINFORCE with reward-to-go and no baseline.
        Unbiased(credit=_c("reward-to-go"), group_size=(1, 2, 3)),
        Biased(credit=_c("reward-to-go", turn_gamma=0.8)),
    ),
    "gigpo": (
        Unbiased(credit=_c("gigpo", step_weight=0.0, divide_by_std=False), scale=lambda n: (n - 1) / n),
        Biased(credit=_c("gigpo", step_weight=0.5, divide_by_std=False)),
        Biased(credit=_c("gigpo", turn_gamma=0.95)),
    ),
}

_MOST_GROUPS = {1: 1000, 2: 3000, 3: 25_000}
"""Worlds with more groups of a size than this are left to smaller sizes, for the sake of time."""


def prove(claim: Claim, world: str) -> None:
    """Fails unless the claim holds in a world, to rounding."""
    oracle = consult(WORLDS[world])
    for critic in claim.critics or (None,):
        values = {None: None, "exact": oracle.values, "any": wrong_values(oracle)}[critic]
        deck = Deck(oracle, values)
        if isinstance(claim, Unbiased):
            exact = oracle.gradient(oracle.payoff(values))
            for n in claim.group_size:
                if _groups(len(oracle.trajectories), n) <= _MOST_GROUPS[n]:
                    assert_same(
                        expected_gradient(deck, claim.credit, group_size=n),
                        claim.scale(n) * exact,
                        _words(claim, world, critic, n),
                    )
        elif not spans_the_batch(claim.credit) or len(oracle.trajectories) < 20:
            alone = claim.credit.needs_critic and not claim.credit.whiten
            found = expected_gradient(deck, claim.credit, group_size=1 if alone else 2)
            assert_same(
                found,
                mean_by_hand(oracle, claim.credit, values, alone=alone),
                _words(claim, world, critic, 1 if alone else 2),
            )


def mean_by_hand(oracle, credit, values, *, alone=False):
    """The mean gradient of groups of two, or of one, from the formula, over every one that can be drawn."""
    every = range(len(oracle.trajectories))
    probability = oracle.probability.tolist()
    choice = [indices.tolist() for indices in oracle.choice]
    pushed = [0.0] * len(oracle.jacobian)
    for group in [(i,) for i in every] if alone else combinations_with_replacement(every, 2):
        judged = credit_by_hand([[oracle.trajectories[member] for member in group]], credit, values)
        orders = len(set(group))
        chance = orders * prod(probability[member] for member in group)
        for member, advantages in zip(group, judged, strict=True):
            for index, advantage in zip(choice[member], advantages, strict=True):
                pushed[index] += chance * advantage / len(group)
    return torch.tensor(pushed, dtype=torch.double) @ oracle.jacobian


def assert_same(found: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = 1e-9) -> None:
    """To `tolerance` of the length of what is expected."""
    off = float((found - expected).norm() / expected.norm().clamp(min=1e-12))
    assert off < tolerance, f"{what}: off by {off:.3g} of its length"


def _words(claim: Claim, world: str, critic: str | None, group_size: int) -> str:
    settings = claim.credit.model_dump(exclude_defaults=True)
    return f"{settings} in {world}, groups of {group_size}, critic {critic}"


def _groups(episodes: int, n: int) -> int:
    return comb(episodes + n - 1, n)
