"""Which estimator assigns credit, and what it reads: the `credit` section of a recipe. No torch: a recipe is checked
before it loads.

Invariant: an estimator takes the settings it names as keyword parameters and no others, so what it never reads is known
before a run begins.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from turnwise.plugins import PluginKind, check_arguments, find_function, name_object, require_name
from turnwise.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorInfo:
    """An estimator, by where it is and what it needs."""

    place: str
    """`module:function`."""
    reads: tuple[str, ...] = ()
    """The settings of this section that are its keyword parameters."""
    needs_critic: bool = False
    compares_groups: bool = False
    """It learns nothing from a task that was sampled once."""


ESTIMATORS: Mapping[str, EstimatorInfo] = {
    "gae": EstimatorInfo(place="turnwise.credit.gae:gae", reads=("gamma", "lam", "whiten"), needs_critic=True),
    "turn-gae": EstimatorInfo(
        place="turnwise.credit.turn_gae:turn_gae", reads=("turn_gamma", "turn_lam", "whiten"), needs_critic=True
    ),
    "bilevel-gae": EstimatorInfo(
        place="turnwise.credit.bilevel_gae:bilevel_gae",
        reads=("gamma", "lam", "turn_gamma", "turn_lam", "whiten"),
        needs_critic=True,
    ),
    "grpo": EstimatorInfo(place="turnwise.credit.grpo:grpo", reads=("divide_by_std",), compares_groups=True),
    "dr-grpo": EstimatorInfo(place="turnwise.credit.dr_grpo:dr_grpo", compares_groups=True),
    "rloo": EstimatorInfo(place="turnwise.credit.rloo:rloo", compares_groups=True),
    "reinforce++": EstimatorInfo(place="turnwise.credit.reinforce_pp:reinforce_pp", reads=("gamma",)),
    "reinforce++-baseline": EstimatorInfo(
        place="turnwise.credit.reinforce_pp_baseline:reinforce_pp_baseline", compares_groups=True
    ),
    "reward-to-go": EstimatorInfo(place="turnwise.credit.reward_to_go:reward_to_go", reads=("turn_gamma",)),
    "gigpo": EstimatorInfo(
        place="turnwise.credit.gigpo:gigpo", reads=("turn_gamma", "step_weight", "divide_by_std"), compares_groups=True
    ),
}
"""The estimators that come with the package; a test holds `reads` to the functions' signatures."""
KNOWN: Mapping[str, str] = {name: info.place for name, info in ESTIMATORS.items()}
ESTIMATOR = PluginKind(
    key="credit.estimator",
    noun="estimator",
    group="turnwise.estimators",
    args="credit.args",
    contract="write a function of a TokenBatch that returns Credit (turnwise.credit.base)",
)
EstimatorName: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: name_object(value) if callable(value) else value),
    AfterValidator(lambda name: require_name(ESTIMATOR, name, KNOWN)),
]


class CreditSettings(Settings):
    """How rewards become one advantage per token."""

    estimator: EstimatorName = "grpo"
    """`gae` is PPO's and needs a critic, as `turn-gae` and `bilevel-gae` do; the others have none. Your own is named
    `module:function` or `file.py:function`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of an estimator of your own; those named like a setting below get that setting."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per credited token; read by `gae`, `reinforce++` and, inside a turn, `bilevel-gae`."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ from token to token; read by `gae` and, inside a turn, `bilevel-gae`."""
    turn_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount per turn; read by `turn-gae`, `bilevel-gae`, `reward-to-go` and `gigpo` (whose paper takes 0.95)."""
    turn_lam: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ from turn to turn; read by `turn-gae` and `bilevel-gae`."""
    whiten: bool = True
    """Normalise advantages over the batch; read by `gae`, `turn-gae` and `bilevel-gae` (in `reinforce++` and its
    baseline variant it is part of the definition)."""
    divide_by_std: bool = True
    """Divide by the group's standard deviation; read by `grpo` and, in both its parts, `gigpo`. Off, `grpo` is
    `dr-grpo`."""
    step_weight: float = Field(default=1.0, ge=0)
    """Weight of the comparison between turns in one state beside that between trajectories, ω; read by `gigpo`."""
    advantage_mask: bool = True
    """On, credit is computed over the agent's own tokens alone; off, over all tokens after the prompt."""

    @model_validator(mode="after")
    def _agrees(self) -> "CreditSettings":
        if self.estimator == "turn-gae" and not self.advantage_mask:
            raise ValueError(
                "turn-gae takes one value per turn, at the turn's first action token, so it cannot credit context "
                "tokens: set advantage_mask to true, or use gae"
            )
        return self

    @property
    def info(self) -> EstimatorInfo:
        """What the estimator needs; one of the user's own is imported for it."""
        return ESTIMATORS.get(self.estimator) or _describe(self.estimator)

    @property
    def needs_critic(self) -> bool:
        return self.info.needs_critic

    @property
    def compares_groups(self) -> bool:
        return self.info.compares_groups

    def arguments(self) -> dict[str, object]:
        """The estimator's keyword arguments: settings that it reads, and its own `args`, checked."""
        info = self.info
        taken = {name: getattr(self, name) for name in info.reads}
        if self.estimator in ESTIMATORS:
            return taken
        function = find_function(ESTIMATOR, self.estimator, KNOWN)
        return taken | check_arguments(ESTIMATOR, self.estimator, function, self.args, supplied=1, but=info.reads)

    def unread(self) -> Mapping[str, str]:
        own = ("args",) if self.estimator in ESTIMATORS else ()
        return {name: "estimator" for name in (*own, *_readable()) if name not in self.info.reads}


def _readable() -> list[str]:
    """The settings that estimators take, or leave."""
    return [name for name in CreditSettings.model_fields if name not in ("estimator", "args", "advantage_mask")]


def _describe(name: str) -> EstimatorInfo:
    function = find_function(ESTIMATOR, name, KNOWN)
    parameters = list(inspect.signature(function).parameters)[1:]
    return EstimatorInfo(
        place=name,
        reads=tuple(field for field in _readable() if field in parameters),
        needs_critic=bool(getattr(function, "needs_critic", False)),
        compares_groups=bool(getattr(function, "compares_groups", False)),
    )
