"""Which groups a step learns from: those whose members were paid differently have something to compare.

Invariant: groups are ranked by the standard deviation of what their whole trajectories were paid, before anything was
taken off or normalised; nothing is dropped without being counted.

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
    """Which groups are learnt from."""

    rule: Rule = "none"
    """`nonzero`: those that spread at all; `top_fraction`: the share `keep` that spreads most; `top_p`: of those that
    spread at all, the widest that together hold the share `mass` of all spread; `none`: every group."""
    keep: float = Field(default=0.25, gt=0, le=1)
    """The share of groups that is kept, rounded up; read by `top_fraction`."""
    mass: float = Field(default=0.9, gt=0, le=1)
    """The share of all standard deviations' sum that is kept; read by `top_p`."""
    refill: int = Field(default=0, ge=0)
    """How many times as many tasks again may be sampled until a step has `rollout.groups_per_step` groups to learn
    from. With 0, a step learns from what is left of them: as many samples as without a filter, but smaller batches."""

    @model_validator(mode="after")
    def _refills_something(self) -> "FilterSettings":
        if self.rule == "none" and self.refill:
            raise ValueError("refill: the rule 'none' drops nothing that could be refilled: name a rule or set 0")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the groups given are learnt from, and what became of the rest."""

    kept: tuple[int, ...]
    """Their places, in the order they were given."""
    given: int
    flat: int
    """Groups whose members were all paid the same."""

    def metrics(self, refills: int = 0) -> dict[str, float]:
        """`{"filter/kept": 8, "filter/dropped": 24, "filter/zero_variance": 5, "filter/refills": 3, ...}`."""
        return {
            "filter/kept": float(len(self.kept)),
            "filter/dropped": float(self.given - len(self.kept)),
            "filter/zero_variance": float(self.flat),
            "filter/refills": float(refills),
            "filter/nothing_left": float(not self.kept),
        }


def select(groups: Sequence[Group], settings: FilterSettings, *, most: int | None = None) -> Selection:
    """Chooses groups by their spread, and no more than `most` of them: `select(groups, settings).kept` is (0, 3).

    Where more are left than `most`, the widest stay; under `nonzero`, which does not rank, the first do.
    """
    spreads = [reward_spread(group) or 0.0 for group in groups]
    ranking = _rank(spreads, settings)
    kept = ranking if most is None else ranking[:most]
    return Selection(kept=tuple(sorted(kept)), given=len(groups), flat=sum(spread == 0 for spread in spreads))


def _rank(spreads: Sequence[float], settings: FilterSettings) -> list[int]:
    """The places that pass the rule, the most wanted first; of equal ones the earlier."""
    widest = sorted(range(len(spreads)), key=lambda place: (-spreads[place], place))
    match settings.rule:
        case "none":
            return list(range(len(spreads)))
        case "nonzero":
            return [place for place, spread in enumerate(spreads) if spread > 0]
        case "top_fraction":
            # A product such as 0.07 × 100 may come out a hair above the whole number that is meant.
            return widest[: math.ceil(settings.keep * len(spreads) - 1e-9)]
        case "top_p":
            return _hold(widest, spreads, settings.mass * math.fsum(spreads))


def _hold(widest: Sequence[int], spreads: Sequence[float], enough: float) -> list[int]:
    kept: list[int] = []
    held = 0.0
    for place in widest:
        # Without the margin, a sum that rounds to just below `enough` would take one group too many.
        if spreads[place] == 0 or held >= enough * (1 - 1e-12):
            break
        kept.append(place)
        held += spreads[place]
    return kept
