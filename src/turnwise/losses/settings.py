"""The `loss` section of a recipe. No torch: a recipe is checked before it loads.

Invariant: settings that contradict each other are refused here, before any work starts; a form of the loss takes the
settings it names as keyword parameters and no others, so what it never reads is known, too.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from turnwise.plugins import PluginKind, check_arguments, find_function, name_object, require_name
from turnwise.settings import Settings

Aggregation: TypeAlias = Literal["token", "trajectory", "fixed"]
KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]
KlPlace: TypeAlias = Literal["loss", "reward"]
OldLogprobs: TypeAlias = Literal["sampler", "learner"]
Ratio: TypeAlias = Literal["token", "turn", "trajectory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormInfo:
    """A form of the policy loss, by where it is and what it takes."""

    place: str
    """`module:function`."""
    reads: tuple[str, ...] = ()
    """The settings of this section that are its keyword parameters."""
    takes_segment: bool = False
    """Tokens of a turn or a trajectory may share one ratio."""
    ignores_zero_advantage: bool = False
    """Tokens that share a ratio, each of advantage 0, have no loss and no gradient, and are never clipped."""


_CORRECTIONS = ("tis_cap", "mis_cap", "icepop_band")
STALE_TIS_CAP = 2.0
"""`tis_cap` under `rollout.staleness`, where no other correction is chosen."""
_BOUNDS = ("clip_low", "clip_high", "dual_clip")
FORMS: Mapping[str, FormInfo] = {
    "clip": FormInfo(place="turnwise.losses.policy:policy_loss", reads=_BOUNDS, ignores_zero_advantage=True),
    "gspo": FormInfo(
        place="turnwise.losses.gspo:gspo_loss", reads=_BOUNDS, takes_segment=True, ignores_zero_advantage=True
    ),
    "cispo": FormInfo(place="turnwise.losses.cispo:cispo_loss", reads=("clip_high",)),
}
"""The forms that come with the package; a test holds `reads` to the functions' signatures."""
KNOWN: Mapping[str, str] = {name: info.place for name, info in FORMS.items()}
FORM = PluginKind(
    key="loss.form",
    noun="loss form",
    group="turnwise.losses",
    args="loss.args",
    contract="write a function of logprob, old_logprob and advantage (turnwise.losses.forms)",
)
FormName: TypeAlias = Annotated[
    str,
    BeforeValidator(lambda value: name_object(value) if callable(value) else value),
    AfterValidator(lambda name: require_name(FORM, name, KNOWN)),
]


class LossSettings(Settings):
    """The terms of the loss, and the tokens they are summed over."""

    form: FormName = "clip"
    """`clip`: PPO's; `gspo`: its bounds on one ratio per turn or trajectory; `cispo`: a bounded weight on log π. A form
    of your own is named `module:function` or `file.py:function`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of a form of your own; those named like a setting below get that setting."""
    ratio: Ratio = "token"
    """What shares one probability ratio: for `gspo` the tokens of a `turn` or of a `trajectory`, else each `token`."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Lower clip range: the gradient stops where the ratio is below 1 − this; read by `clip` and `gspo` (whose paper
    takes 3e-4)."""
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip range: the gradient stops where the ratio is above 1 + this, or in `cispo` its weight; StarPO-S takes
    0.28, `gspo`'s paper 4e-4."""
    dual_clip: float | None = Field(default=3.0, gt=1)
    """Bounds the loss of a bad action whose probability has risen, at this many times its advantage; null disables it.
    Read by `clip` and `gspo`."""
    old_logprobs: OldLogprobs | None = None
    """Whose logprobs are π_old in the ratio π / π_old: the `sampler`'s, or the `learner`'s own before the update, which
    differ by rounding. Null: the sampler's in float32; the learner's in half precision, whose rounding is larger than
    `gspo`'s clip range, but for samples of older weights (`rollout.updates_per_rollout`), whose age only the sampler's
    correct for. The learner's cost a forward pass if an update has several steps, and nothing if it has one."""
    tis_cap: float | None = Field(default=None, ge=1)
    """Truncated importance sampling, for an engine whose probabilities are not the learner's: ratios are then against
    the learner's own before the update, and a token weighs min(π_learner / π_sampler, this). 2 is usual; null: none, or
    2 under `rollout.staleness`, unless `old_logprobs` or another correction is set."""
    mis_cap: float | None = Field(default=None, ge=1)
    """Masked importance sampling: as `tis_cap`, but a token whose π_learner / π_sampler is above this is left out of
    the policy loss rather than held at it. 2 is usual; null: none."""
    icepop_band: tuple[float, float] | None = None
    """IcePop: as `mis_cap`, with a bound on both sides: a token whose π_learner / π_sampler is outside `[low, high]` is
    left out. [0.5, 5] is the paper's; null: none."""
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
    """Coefficient of the KL divergence from the reference, the policy at the start; 0 keeps no reference at all."""
    kl_in: KlPlace = "loss"
    """`loss`: a term of the loss; `reward`: subtracted from each credited token's reward before credit."""
    kl_estimator: KlEstimator | None = None
    """None: k1 in the reward, k3 in the loss. (k1 in the loss has a gradient of zero mean: it only adds noise.)"""
    value_clip: float | None = Field(default=None, gt=0)
    """Value clipping: how far a value may move from its old one before its gradient stops; null disables it."""

    @model_validator(mode="after")
    def _agrees(self) -> "LossSettings":
        if self.form == "gspo" and self.ratio == "token":
            raise ValueError("form gspo shares one ratio among tokens: set ratio to turn or trajectory")
        if self.form in FORMS and not FORMS[self.form].takes_segment and self.ratio != "token":
            raise ValueError(
                f"ratio {self.ratio} needs form gspo, since {self.form} has one per token: set form to gspo"
            )
        given = [name for name in _CORRECTIONS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} correct the same mismatch: set one of them")
        if given and self.old_logprobs == "sampler":
            raise ValueError(f"{given[0]} takes ratios against the learner's own logprobs: set old_logprobs to learner")
        if self.icepop_band is not None and not 0 <= self.icepop_band[0] <= 1 <= self.icepop_band[1]:
            raise ValueError("icepop_band is [low, high] around 1, where sampler and learner agree: such as [0.5, 5]")
        if self.aggregation == "fixed" and self.fixed_length is None:
            raise ValueError("aggregation fixed divides by a length that is not given: set fixed_length")
        if self.aggregation != "fixed" and self.fixed_length is not None:
            raise ValueError(f"fixed_length is not read by aggregation {self.aggregation}: set aggregation to fixed")
        return self

    @property
    def corrects_sampler(self) -> bool:
        """Whether tokens are weighed by π_learner / π_sampler."""
        return any(getattr(self, name) is not None for name in _CORRECTIONS)

    @property
    def kept_band(self) -> tuple[float, float] | None:
        """The ratios π_learner / π_sampler whose tokens are kept; None where none are masked."""
        return (0.0, self.mis_cap) if self.mis_cap is not None else self.icepop_band

    @property
    def kl_form(self) -> KlEstimator:
        """The estimator that is used, whether named or left to the place."""
        return self.kl_estimator or ("k1" if self.kl_in == "reward" else "k3")

    @property
    def info(self) -> FormInfo:
        """What the form takes; one of the user's own is imported for it."""
        return FORMS.get(self.form) or _describe(self.form)

    def arguments(self) -> dict[str, object]:
        """The form's keyword arguments: settings that it reads, and its own `args`, checked."""
        info = self.info
        taken = {name: getattr(self, name) for name in info.reads}
        if self.form in FORMS:
            return taken
        function = find_function(FORM, self.form, KNOWN)
        other = (*info.reads, "segment")
        return taken | check_arguments(FORM, self.form, function, self.args, supplied=3, but=other)

    def unread(self) -> Mapping[str, str]:
        own = ("args",) if self.form in FORMS else ()
        unread = {name: "form" for name in (*own, *_BOUNDS) if name not in self.info.reads}
        return unread if self.kl_coef else {**unread, "kl_in": "kl_coef", "kl_estimator": "kl_coef"}


def _describe(name: str) -> FormInfo:
    function = find_function(FORM, name, KNOWN)
    parameters = list(inspect.signature(function).parameters)[3:]
    reads = tuple(field for field in LossSettings.model_fields if field in parameters and field not in ("form", "args"))
    return FormInfo(place=name, reads=reads, takes_segment="segment" in parameters)
