"""Which groups a step trains on: rewards that vary within a group are what estimators compare.

Invariant: groups are ranked by the standard deviation of their trajectories' total rewards, before any penalty or
normalisation; every dropped group is counted.

Sources: RAGEN (arXiv 2504.20073), StarPO-S's uncertainty filter, `top_fraction`; RAGEN-2 (arXiv 2604.06268), `top_p`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import Field, model_validator

from turnwise.rollout.summary import reward_spread
from turnwise.settings import Settings
from turnwise.types import Group

Rule: TypeAlias = Literal["none", "nonzero", "top_fraction", "top_p"]


class FilterSettings(Settings):
    """Which groups are trained on."""

    rule: Rule = "none"
    """`nonzero`: groups whose rewards vary at all; `top_fraction`: the share `keep` with the highest reward std;
    `top_p`: the highest that together hold the share `mass` of the sum of all stds; `none`: every group."""
    keep: float = Field(default=0.25, gt=0, le=1)
    """The share of groups to keep, rounded up; read by `top_fraction`."""
    mass: float = Field(default=0.9, gt=0, le=1)
    """The share of the sum of all stds to keep; read by `top_p`."""
    refill: int = Field(default=0, ge=0)
    """How many further rounds of tasks may be sampled until a step has `rollout.groups_per_step` groups to train on.
    With 0, a step trains on the groups that are left: as many samples as without a filter, but smaller batches."""

    @model_validator(mode="after")
    def _refills_something(self) -> "FilterSettings":
        if self.rule == "none" and self.refill:
            raise ValueError("refill: the rule 'none' drops nothing that could be refilled: name a rule or set 0")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the given groups are trained on, and how many were dropped."""

    kept: tuple[int, ...]
    """Their indices, in the order they were given."""
    given: int
    zero_variance: int
    """Groups whose trajectories all have the same reward."""

    def metrics(self, refills: int = 0) -> dict[str, float]:
        """`{"filter/kept": 8, "filter/dropped": 24, "filter/zero_variance": 5, "filter/refills": 3, ...}`."""
        return {
            "filter/kept": float(len(self.kept)),
            "filter/dropped": float(self.given - len(self.kept)),
            "filter/zero_variance": float(self.zero_variance),
            "filter/refills": float(refills),
            "filter/nothing_left": float(not self.kept),
        }


def select(groups: Sequence[Group], settings: FilterSettings, *, most: int | None = None) -> Selection:
    """Chooses groups by their reward std, `most` of them at most: `select(groups, settings).kept` is (0, 3).

    If more than `most` pass, those with the highest std stay; under `nonzero`, which does not rank, the first do.
    """
    stds = [reward_spread(group) or 0.0 for group in groups]
    ranking = _rank(stds, settings)
    kept = ranking if most is None else ranking[:most]
    return Selection(kept=tuple(sorted(kept)), given=len(groups), zero_variance=sum(std == 0 for std in stds))


def _rank(stds: Sequence[float], settings: FilterSettings) -> list[int]:
    """Indices of the groups that pass the rule, best first; ties go to the earlier."""
    highest = sorted(range(len(stds)), key=lambda place: (-stds[place], place))
    match settings.rule:
        case "none":
            return list(range(len(stds)))
        case "nonzero":
            return [place for place, std in enumerate(stds) if std > 0]
        case "top_fraction":
            # A product such as 0.07 × 100 may come out a hair above the whole number that is meant.
            return highest[: math.ceil(settings.keep * len(stds) - 1e-9)]
        case "top_p":
            return _hold(highest, stds, settings.mass * math.fsum(stds))


def _hold(highest: Sequence[int], stds: Sequence[float], enough: float) -> list[int]:
    kept: list[int] = []
    held = 0.0
    for place in highest:
        # Without the margin, a sum that rounds to just below `enough` would take one group too many.
        if stds[place] == 0 or held >= enough * (1 - 1e-12):
            break
        kept.append(place)
        held += stds[place]
    return kept
