"""What a run learns by, and what StarPO-S changes of it: each part a switch of its own.

Source: RAGEN (arXiv 2504.20073): keep the groups that spread most, clip higher above than below, hold to no reference,
and let a critic stand in for the group's normalisation.
"""

from dataclasses import dataclass

from pydantic import Field

from turnwise.credit.settings import CreditSettings, EstimatorName
from turnwise.losses.settings import LossSettings
from turnwise.settings import Settings
from turnwise.stability.filters import FilterSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """What a step is chosen, credited and learnt by."""

    filter: FilterSettings
    credit: CreditSettings
    loss: LossSettings


class RemedySettings(Settings):
    """StarPO-S: what is laid over a run's own settings; null leaves a part as the run has it."""

    filter: FilterSettings | None = FilterSettings(rule="top_fraction", keep=0.25)
    """Which groups are learnt from."""
    clip_high: float | None = Field(default=0.28, ge=0)
    """How far a probability ratio may rise."""
    kl_coef: float | None = Field(default=0.0, ge=0)
    """Coefficient of the divergence from the policy at the start."""
    estimator: EstimatorName | None = "gae"
    """How credit is assigned; one with a critic needs no group to compare with."""
    critic_warmup: int = Field(default=2, ge=0)
    """Updates in which only the critic learns, where the run itself has none."""

    def over(self, regime: Regime) -> Regime:
        """The regime under this remedy, checked as a recipe's would be."""
        loss = {"clip_high": self.clip_high, "kl_coef": self.kl_coef}
        credit = {"estimator": self.estimator}
        return Regime(
            filter=self.filter or regime.filter,
            credit=CreditSettings.model_validate(regime.credit.model_dump() | _given(credit)),
            loss=LossSettings.model_validate(regime.loss.model_dump() | _given(loss)),
        )


def _given(values: dict[str, float | None] | dict[str, EstimatorName | None]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
