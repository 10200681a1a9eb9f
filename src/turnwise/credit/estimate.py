"""Chooses the estimator a recipe names. Invariant: an estimator that cannot run is an error, never a zero."""

from typing import Literal, TypeAlias, get_args

import torch
from pydantic import Field

from turnwise.credit.base import Credit, Episodes
from turnwise.credit.gae import gae
from turnwise.credit.grpo import grpo
from turnwise.credit.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from turnwise.credit.rloo import rloo
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.settings import Settings

Estimator: TypeAlias = Literal["gae", "grpo", "rloo", "reinforce++", "reinforce++-baseline"]


class CreditSettings(Settings):
    """How what was earned is shared out among the tokens that earned it."""

    estimator: Estimator = "grpo"
    """`gae` is PPO's and brings a critic; the others have none."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per credited token; read by `gae` and `reinforce++`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ; read by `gae`."""
    whiten: bool = True
    """Normalise the advantages over the batch; read by `gae` (in `reinforce++` it is part of the definition)."""
    divide_by_std: bool = True
    """Divide by the group's standard deviation; read by `grpo`. Off, its advantage is that of Dr. GRPO."""
    advantage_mask: bool = True
    """On, credit is computed over the agent's own tokens alone; off, over all tokens after the prompt."""

    @property
    def needs_critic(self) -> bool:
        return self.estimator == "gae"

    @property
    def compares_groups(self) -> bool:
        """A task sampled only once teaches these nothing."""
        return self.estimator in ("grpo", "rloo", "reinforce++-baseline")


def estimate(episodes: Episodes, settings: CreditSettings) -> Credit:
    """Runs the estimator that `settings` names; its advantages are finite, or this raises."""
    match settings.estimator:
        case "gae":
            credit = gae(episodes, gamma=settings.gamma, lam=settings.lam, whiten=settings.whiten)
        case "grpo":
            credit = grpo(episodes, divide_by_std=settings.divide_by_std)
        case "rloo":
            credit = rloo(episodes)
        case "reinforce++":
            credit = reinforce_pp(episodes, gamma=settings.gamma)
        case "reinforce++-baseline":
            credit = reinforce_pp_baseline(episodes)
        case unknown:
            known = ", ".join(get_args(Estimator))
            raise ConfigError(f"credit.estimator: '{unknown}' is not an estimator; known are {known}")
    if not torch.isfinite(credit.advantage).all():
        raise TurnwiseError(
            f"credit.estimator: {settings.estimator} gave an advantage that is not finite: the policy or the critic "
            "has diverged; go back to an earlier checkpoint and lower the learning rate"
        )
    return credit
