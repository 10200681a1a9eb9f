"""The algorithm settings of a step, and what StarPO-S changes of them: each part can be switched off by itself.

Source: RAGEN (arXiv 2504.20073): train on the groups whose rewards vary most, clip higher above than below, drop the KL
to the reference, and let a critic replace the group's normalisation.
"""

from dataclasses import dataclass

from pydantic import Field

from turnwise.credit.settings import CreditSettings, EstimatorName
from turnwise.losses.settings import LossSettings
from turnwise.settings import Settings
from turnwise.stability.filters import FilterSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSettings:
    """How a step's groups are filtered, credited and trained on."""

    filter: FilterSettings
    credit: CreditSettings
    loss: LossSettings
    lr_share: float = 1.0
    """Of the run's learning rate; below 1 a step makes one update, whatever the epochs and mini-batches of the run."""


class StarPOSSettings(Settings):
    """StarPO-S: overrides of a run's own settings; null keeps the run's own value."""

    filter: FilterSettings | None = FilterSettings(rule="top_fraction", keep=0.25)
    """Which groups are trained on."""
    clip_high: float | None = Field(default=0.28, ge=0)
    """Upper clip range of a token's probability ratio; one that a turn or trajectory shares keeps the run's own."""
    kl_coef: float | None = Field(default=0.0, ge=0)
    """Coefficient of the KL divergence from the reference."""
    estimator: EstimatorName | None = "gae"
    """Advantage estimator; one with a critic needs no group to compare with."""
    critic_warmup: int = Field(default=2, ge=0)
    """Updates of the critic alone when StarPO-S is enabled, if the run itself has no critic."""

    def apply_to(self, own: AlgorithmSettings) -> AlgorithmSettings:
        """A run's own settings with these overrides, validated like a recipe's."""
        # The mean ratio of many tokens moves by thousandths: a token's range would leave it without any bound.
        loss = {"clip_high": self.clip_high if own.loss.ratio == "token" else None, "kl_coef": self.kl_coef}
        credit = {"estimator": self.estimator}
        return AlgorithmSettings(
            filter=self.filter or own.filter,
            credit=CreditSettings.model_validate(own.credit.model_dump() | _given(credit)),
            loss=LossSettings.model_validate(own.loss.model_dump() | _given(loss)),
            lr_share=own.lr_share,
        )


def _given(values: dict[str, float | None] | dict[str, EstimatorName | None]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
