"""What a recipe says about the loss; every switch here is read by the learner."""

from typing import Literal, TypeAlias

from pydantic import Field

from turnwise.losses.aggregate import Aggregation
from turnwise.losses.kl import KlEstimator
from turnwise.settings import Settings

KlPlace: TypeAlias = Literal["loss", "reward"]


class LossSettings(Settings):
    """The terms of the loss and the tokens that carry it."""

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The probability ratio may fall to 1 − this before its gradient stops."""
    clip_high: float = Field(default=0.2, ge=0)
    """The probability ratio may rise to 1 + this before its gradient stops; StarPO-S takes 0.28."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bounds the loss of a bad action whose probability has risen, at this many times its advantage; None: never."""
    aggregation: Aggregation = "token"
    """`token`: every trained token weighs the same; `trajectory`: every trajectory does."""
    action_mask: bool = True
    """On, all losses see the agent's own tokens alone; off, all tokens after the prompt."""
    entropy: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus."""
    kl: float = Field(default=0.0, ge=0)
    """Coefficient of the divergence from the policy at the start; 0 keeps no reference at all."""
    kl_in: KlPlace = "loss"
    """`loss`: a term beside the policy's; `reward`: taken off each credited token's reward before credit."""
    kl_estimator: KlEstimator | None = None
    """None: k1 in the reward, k3 in the loss. (k1 in the loss has a gradient of zero mean: it only adds noise.)"""
    value_clip: float | None = Field(default=None, gt=0)
    """How far a value may move from its old one before its gradient stops; None: as far as it likes."""

    @property
    def kl_form(self) -> KlEstimator:
        """The estimator that is used, whether named or left to the place."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")
