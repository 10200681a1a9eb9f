"""What a recipe says about the loss; every switch here is read by the learner.

Invariant: settings that contradict each other are refused here, before any work starts.
"""

from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from turnwise.losses.aggregate import Aggregation
from turnwise.losses.kl import KlEstimator
from turnwise.settings import Settings

KlPlace: TypeAlias = Literal["loss", "reward"]
PolicyForm: TypeAlias = Literal["clip", "gspo", "cispo"]
Ratio: TypeAlias = Literal["token", "turn", "trajectory"]


class LossSettings(Settings):
    """The terms of the loss and the tokens that carry it."""

    form: PolicyForm = "clip"
    """`clip`: PPO's; `gspo`: its bounds on one ratio per turn or trajectory; `cispo`: a bounded weight on log π."""
    ratio: Ratio = "token"
    """What shares one probability ratio: for `gspo` the tokens of a `turn` or of a `trajectory`, else each `token`."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio may fall to 1 − this before its gradient stops; read by `clip` and `gspo` (whose paper takes 3e-4)."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio may rise to 1 + this before its gradient stops, or in `cispo` its weight; StarPO-S takes 0.28, `gspo`'s
    paper 4e-4."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bounds the loss of a bad action whose probability has risen, at this many times its advantage; None: never. Read
    by `clip` and `gspo`."""
    tis_cap: float | None = Field(default=None, ge=1)
    """Corrects for a sampler whose probabilities are not the learner's: ratios are then against the learner's own,
    taken before the update, and a token weighs min(π_learner / π_sampler, this). 2 is usual; None: no correction."""
    aggregation: Aggregation = "token"
    """`token`: every trained token weighs the same; `trajectory`: every trajectory does; `fixed`: a token weighs
    1 / (trajectories × `fixed_length`), however long its trajectory is."""
    fixed_length: int | None = Field(default=None, ge=1)
    """The length `aggregation: fixed` divides by, such as the most tokens an episode may sample."""
    action_mask: bool = True
    """On, all losses see the agent's own tokens alone; off, all tokens after the prompt."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the divergence from the policy at the start; 0 keeps no reference at all."""
    kl_in: KlPlace = "loss"
    """`loss`: a term beside the policy's; `reward`: taken off each credited token's reward before credit."""
    kl_estimator: KlEstimator | None = None
    """None: k1 in the reward, k3 in the loss. (k1 in the loss has a gradient of zero mean: it only adds noise.)"""
    value_clip: float | None = Field(default=None, gt=0)
    """How far a value may move from its old one before its gradient stops; None: as far as it likes."""

    @model_validator(mode="after")
    def _agrees(self) -> "LossSettings":
        if self.form == "gspo" and self.ratio == "token":
            raise ValueError("form gspo shares one ratio among tokens: set ratio to turn or trajectory")
        if self.form != "gspo" and self.ratio != "token":
            raise ValueError(
                f"ratio {self.ratio} needs form gspo, since {self.form} has one per token: set form to gspo"
            )
        if self.aggregation == "fixed" and self.fixed_length is None:
            raise ValueError("aggregation fixed divides by a length that is not given: set fixed_length")
        if self.aggregation != "fixed" and self.fixed_length is not None:
            raise ValueError(f"fixed_length is not read by aggregation {self.aggregation}: set aggregation to fixed")
        return self

    @property
    def kl_form(self) -> KlEstimator:
        """The estimator that is used, whether named or left to the place."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")
