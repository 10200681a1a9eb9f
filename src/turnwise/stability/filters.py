"""Which groups a step trains on: rewards that vary within a group are what estimators compare.

Invariant: groups are ranked by the standard deviation of their trajectories' total rewards, before any penalty or
normalisation; every dropped group is counted.

Sources: RAGEN (arXiv 2504.20073), StarPO-S's uncertainty filter, `top_fraction`; RAGEN-2 (arXiv 2604.06268), `top_p`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from turnwise.errors import ConfigError
from turnwise.plugins import PluginKind, check_arguments, find_function, name_object, require_name
from turnwise.rollout.mixture_sampler import share_out
from turnwise.rollout.summary import reward_std
from turnwise.settings import Settings
from turnwise.types import Group

_READS: Mapping[str, tuple[str, ...]] = {"none": (), "nonzero": (), "top_fraction": ("keep",), "top_p": ("mass",)}
"""The rules that come with the package, and the settings each of them reads."""
KNOWN: Mapping[str, str] = {
    "none": "turnwise.stability.filters:keep_all",
    "nonzero": "turnwise.stability.filters:nonzero",
    "top_fraction": "turnwise.stability.filters:top_fraction",
    "top_p": "turnwise.stability.filters:top_p",
}
FILTER = PluginKind(
    key="stability.filter.rule",
    noun="filter",
    group="turnwise.filters",
    args="stability.filter.args",
    contract="write a function of a sequence of groups that returns the indices to keep, best first",
)
RuleName: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: name_object(value) if callable(value) else value),
    AfterValidator(lambda name: require_name(FILTER, name, KNOWN)),
]


class FilterSettings(Settings):
    """Which groups are trained on."""

    rule: RuleName = "none"
    """`nonzero`: groups whose rewards vary at all; `top_fraction`: the share `keep` with the highest reward std;
    `top_p`: the highest that together hold the share `mass` of the sum of all stds; `none`: every group. Your
    own is named `module:function` or `file.py:function`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of a filter of your own."""
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

    @property
    def compares_groups(self) -> bool:
        """It ranks groups by the variance of their rewards, which a single response does not have."""
        return self.rule in ("nonzero", "top_fraction", "top_p")

    def function(self) -> Callable[..., object]:
        return find_function(FILTER, self.rule, KNOWN)

    def arguments(self) -> dict[str, object]:
        """The filter's keyword arguments: the settings that a built-in rule reads, or the `args` of one's own."""
        if self.rule in _READS:
            return {name: getattr(self, name) for name in _READS[self.rule]}
        return check_arguments(FILTER, self.rule, self.function(), self.args, supplied=1)

    def unread(self) -> Mapping[str, str]:
        own = ("args",) if self.rule in _READS else ()
        return {name: "rule" for name in (*own, "keep", "mass") if name not in _READS.get(self.rule, ())}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which of the given groups are trained on, and how many were dropped."""

    kept: tuple[int, ...]
    """Their indices, in the order they were given."""
    given: int
    zero_variance: int
    """Groups whose trajectories all have the same reward."""
    by_env: "Mapping[str, Selection]" = field(default_factory=dict)
    """Of a mixture: by environment, whose groups are filtered by themselves."""

    def metrics(self, refills: int = 0) -> dict[str, float]:
        """`{"filter/kept": 8, "filter/dropped": 24, "filter/zero_variance": 5, "filter/refills": 3, ...}`."""
        metrics = {
            "filter/kept": float(len(self.kept)),
            "filter/dropped": float(self.given - len(self.kept)),
            "filter/zero_variance": float(self.zero_variance),
            "filter/refills": float(refills),
            "filter/nothing_left": float(not self.kept),
        }
        for name, own in self.by_env.items():
            counts = {key: own.metrics()[f"filter/{key}"] for key in ("kept", "dropped", "zero_variance")}
            metrics |= {f"filter/env={name}/{key}": count for key, count in counts.items()}
        return metrics


def select(groups: Sequence[Group], settings: FilterSettings, *, most: int | None = None) -> Selection:
    """Chooses the groups to train on, `most` of them at most: `select(groups, settings).kept` is (0, 3).

    In a mixture, the groups of each environment are ranked by themselves, since rewards of different environments have
    no common scale, and each gets its part of `most`; what one cannot fill, as when it is solved, goes to the others.

    If more than `most` pass, the best stay: those with the highest reward std; under `nonzero`, which does not rank,
    the first.
    """
    places = _places_by_env(groups)
    if not places:
        return _keep(groups, _rank(groups, settings)[:most])
    groups_of = {name: [groups[place] for place in own] for name, own in places.items()}
    rankings = {name: _rank(own, settings) for name, own in groups_of.items()}
    parts = _share_among(
        len(groups) if most is None else most,
        passing={name: len(ranking) for name, ranking in rankings.items()},
        drawn={name: len(own) for name, own in places.items()},
    )
    by_env, kept = {}, []
    for name, own in places.items():
        by_env[name] = _keep(groups_of[name], rankings[name][: parts[name]])
        kept += [own[index] for index in by_env[name].kept]
    flat = sum(one.zero_variance for one in by_env.values())
    return Selection(kept=tuple(sorted(kept)), given=len(groups), zero_variance=flat, by_env=by_env)


def _share_among(most: int, *, passing: Mapping[str, int], drawn: Mapping[str, int]) -> dict[str, int]:
    """How many groups of each environment are kept: as they were drawn, and none more than pass.

    Of 8, with 40 and 4 that pass of 44 each: 4 and 4; with 40 and 0: 8 and 0.
    """
    parts = dict.fromkeys(drawn, 0)
    while (left := most - sum(parts.values())) > 0:
        spare = {name: float(count) for name, count in drawn.items() if parts[name] < passing[name]}
        if not spare:
            break
        for name, part in share_out(left, spare).items():
            parts[name] = min(passing[name], parts[name] + part)
    return parts


def _places_by_env(groups: Sequence[Group]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        if group.task.env:
            places.setdefault(group.task.env, []).append(place)
    return places


def _rank(groups: Sequence[Group], settings: FilterSettings) -> list[int]:
    """The indices of the groups that pass, best first."""
    return _check_indices(settings.function()(groups, **settings.arguments()), len(groups), settings.rule)


def _keep(groups: Sequence[Group], kept: Sequence[int]) -> Selection:
    flat = sum(std == 0 for std in _stds(groups))
    return Selection(kept=tuple(sorted(kept)), given=len(groups), zero_variance=flat)


def keep_all(groups: Sequence[Group]) -> list[int]:
    return list(range(len(groups)))


def nonzero(groups: Sequence[Group]) -> list[int]:
    """Groups whose rewards vary at all, in order."""
    return [place for place, std in enumerate(_stds(groups)) if std > 0]


def top_fraction(groups: Sequence[Group], *, keep: float) -> list[int]:
    """The share `keep` of groups with the highest reward std, rounded up."""
    # A product such as 0.07 × 100 may come out a hair above the whole number that is meant.
    return _by_std(_stds(groups))[: math.ceil(keep * len(groups) - 1e-9)]


def top_p(groups: Sequence[Group], *, mass: float) -> list[int]:
    """The groups with the highest reward std that together hold the share `mass` of the sum of all."""
    stds = _stds(groups)
    enough = mass * math.fsum(stds)
    kept: list[int] = []
    held = 0.0
    for place in _by_std(stds):
        # Without the margin, a sum that rounds to just below `enough` would take one group too many.
        if stds[place] == 0 or held >= enough * (1 - 1e-12):
            break
        kept.append(place)
        held += stds[place]
    return kept


def _stds(groups: Sequence[Group]) -> list[float]:
    return [reward_std(group) or 0.0 for group in groups]


def _by_std(stds: Sequence[float]) -> list[int]:
    """Indices by std, the highest first; ties go to the earlier."""
    return sorted(range(len(stds)), key=lambda place: (-stds[place], place))


def _check_indices(found: object, count: int, rule: str) -> list[int]:
    """What a filter returned, which for one of the user's own may be anything."""
    places = list(found) if isinstance(found, Sequence) else [None]
    if len(set(map(repr, places))) < len(places) or not all(type(one) is int and 0 <= one < count for one in places):
        raise ConfigError(
            f"{FILTER.key}: {rule} returned {found!r}: expected different indices of {count} groups, from 0 to "
            f"{count - 1}"
        )
    return [one for one in places if isinstance(one, int)]
