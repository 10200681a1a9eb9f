"""The estimators as they are measured on the oracle's worlds: each by itself, and those with a critic in four ways.

Invariant: a bias has one cause at a time. Advantages are not whitened; the critic is exact or wrong; λ is 1, where a
critic is a baseline alone, or below, where its values also replace later rewards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast, get_args

from turnwise.credit.settings import CreditSettings
from turnwise.oracle.moments import CriticKind
from turnwise.settings import parse_settings
from turnwise.types import Json

_SHORT = 0.5
"""The λ that is not 1: low, since the worlds' episodes are short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """`Candidate(name="gae/lam-0.5/wrong", label="gae, λ = 0.5, wrong critic", credit=..., critic="wrong")`."""

    name: str
    label: str
    credit: CreditSettings
    critic: CriticKind = "exact"
    """Read by estimators that have one."""

    def plain(self) -> dict[str, Json]:
        """As a job's settings."""
        return {"credit": self.credit.model_dump(mode="json"), "critic": self.critic}

    @classmethod
    def read(cls, name: str, plain: Json) -> Self:
        """The candidate that `plain` came from, but for its label."""
        assert isinstance(plain, Mapping)
        credit, critic = plain["credit"], plain["critic"]
        assert isinstance(credit, Mapping)
        assert critic in get_args(CriticKind)
        settings = parse_settings(CreditSettings, credit, source=name)
        return cls(name=name, label=name, credit=settings, critic=cast(CriticKind, critic))


def _with_critic(estimator: str, **lams: str) -> list[Candidate]:
    """`lams` maps each λ that the estimator reads to what it is called."""
    candidates = []
    for lam in (1.0, _SHORT):
        words = ", ".join(f"{letter} = {lam:g}" for letter in lams.values())
        credit = {"estimator": estimator, "whiten": False, **dict.fromkeys(lams, lam)}
        for critic in get_args(CriticKind):
            candidates.append(
                Candidate(
                    name=f"{estimator}/lam-{lam:g}/{critic}",
                    label=f"{estimator}, {words}, {critic} critic",
                    credit=CreditSettings.model_validate(credit),
                    critic=critic,
                )
            )
    return candidates


def _alone(estimator: str, note: str = "", **settings: float) -> Candidate:
    credit = CreditSettings.model_validate({"estimator": estimator, **settings})
    return Candidate(name=estimator, label=f"{estimator}{note}", credit=credit)


CANDIDATES: tuple[Candidate, ...] = (
    *_with_critic("gae", lam="λ"),
    *_with_critic("turn-gae", turn_lam="λ'"),
    *_with_critic("bilevel-gae", lam="λ", turn_lam="λ'"),
    _alone("grpo"),
    _alone("dr-grpo"),
    _alone("rloo"),
    _alone("reinforce++"),
    _alone("reinforce++-baseline"),
    _alone("reward-to-go"),
    _alone("gigpo", ", γ' = 0.95", turn_gamma=0.95),
)
