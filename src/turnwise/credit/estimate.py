"""Chooses the estimator a recipe names. Invariant: an estimator that cannot run is an error, never a zero."""

from typing import Literal, TypeAlias, get_args

import torch
from pydantic import Field, model_validator

from turnwise.credit.base import Credit, Episodes
from turnwise.credit.bilevel_gae import bilevel_gae
from turnwise.credit.dr_grpo import dr_grpo
from turnwise.credit.gae import gae
from turnwise.credit.gigpo import gigpo
from turnwise.credit.grpo import grpo
from turnwise.credit.reinforce_pp import reinforce_pp
from turnwise.credit.reinforce_pp_baseline import reinforce_pp_baseline
from turnwise.credit.reward_to_go import reward_to_go
from turnwise.credit.rloo import rloo
from turnwise.credit.turn_gae import turn_gae
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.settings import Settings

Estimator: TypeAlias = Literal[
    "gae",
    "turn-gae",
    "bilevel-gae",
    "grpo",
    "dr-grpo",
    "rloo",
    "reinforce++",
    "reinforce++-baseline",
    "reward-to-go",
    "gigpo",
]


class CreditSettings(Settings):
    """How what was earned is shared out among the tokens that earned it."""

    estimator: Estimator = "grpo"
    """`gae` is PPO's and brings a critic, as `turn-gae` and `bilevel-gae` do; the others have none."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per credited token; read by `gae`, `reinforce++` and, inside a turn, `bilevel-gae`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ from token to token; read by `gae` and, inside a turn, `bilevel-gae`."""
    turn_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn; read by `turn-gae`, `bilevel-gae`, `reward-to-go` and `gigpo` (whose paper takes 0.95)."""
    turn_lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ from turn to turn; read by `turn-gae` and `bilevel-gae`."""
    whiten: bool = True
    """Normalise the advantages over the batch; read by `gae`, `turn-gae` and `bilevel-gae` (in `reinforce++` and its
    baseline variant it is part of the definition)."""
    divide_by_std: bool = True
    """Divide by the group's standard deviation; read by `grpo` and, in both its parts, `gigpo`. Off, `grpo` is
    `dr-grpo`."""
    step_weight: float = Field(default=1.0, ge=0)
    """What the comparison of turns in one state weighs beside that of trajectories, ω; read by `gigpo`."""
    advantage_mask: bool = True
    """On, credit is computed over the agent's own tokens alone; off, over all tokens after the prompt."""

    @model_validator(mode="after")
    def _agrees(self) -> "CreditSettings":
        if self.estimator == "turn-gae" and not self.advantage_mask:
            raise ValueError(
                "turn-gae takes one value per turn, where the agent begins to speak, so it cannot credit what was "
                "read: set advantage_mask to true, or use gae"
            )
        return self

    @property
    def needs_critic(self) -> bool:
        return self.estimator in ("gae", "turn-gae", "bilevel-gae")

    @property
    def compares_groups(self) -> bool:
        """A task sampled only once teaches these nothing."""
        return self.estimator in ("grpo", "dr-grpo", "rloo", "reinforce++-baseline", "gigpo")


def estimate(episodes: Episodes, settings: CreditSettings) -> Credit:
    """Runs the estimator that `settings` names; its advantages are finite, or this raises."""
    credit = _run(episodes, settings)
    if not torch.isfinite(credit.advantage).all():
        raise TurnwiseError(
            f"credit.estimator: {settings.estimator} gave an advantage that is not finite: the policy or the critic "
            "has diverged; go back to an earlier checkpoint and lower the learning rate"
        )
    return credit


def _run(episodes: Episodes, settings: CreditSettings) -> Credit:
    gamma, lam, whiten = settings.gamma, settings.lam, settings.whiten
    turn_gamma, turn_lam = settings.turn_gamma, settings.turn_lam
    match settings.estimator:
        case "gae":
            return gae(episodes, gamma=gamma, lam=lam, whiten=whiten)
        case "turn-gae":
            return turn_gae(episodes, turn_gamma=turn_gamma, turn_lam=turn_lam, whiten=whiten)
        case "bilevel-gae":
            return bilevel_gae(episodes, gamma=gamma, lam=lam, turn_gamma=turn_gamma, turn_lam=turn_lam, whiten=whiten)
        case "grpo":
            return grpo(episodes, divide_by_std=settings.divide_by_std)
        case "dr-grpo":
            return dr_grpo(episodes)
        case "rloo":
            return rloo(episodes)
        case "reinforce++":
            return reinforce_pp(episodes, gamma=gamma)
        case "reinforce++-baseline":
            return reinforce_pp_baseline(episodes)
        case "reward-to-go":
            return reward_to_go(episodes, turn_gamma=turn_gamma)
        case "gigpo":
            return gigpo(
                episodes,
                turn_gamma=turn_gamma,
                step_weight=settings.step_weight,
                divide_by_std=settings.divide_by_std,
            )
        case unknown:
            known = ", ".join(get_args(Estimator))
            raise ConfigError(f"credit.estimator: '{unknown}' is not an estimator; known are {known}")
