"""Watches a run for collapse, measured against the run's own healthy past.

Invariant: no single step and no single sign raises the alarm. The Echo Trap is a conjunction that lasts: groups whose
members no longer differ though the task is not solved, together with another sign, while success stands still or
falls; or, sooner, groups that differ less and less while success falls with them. A run whose groups no longer differ
because they succeed is well.

Source: RAGEN (arXiv 2504.20073). There the fall of in-group reward deviation and of entropy comes tens of steps before
that of reward, and gradient spikes mark the point of no return; RAGEN-2 (arXiv 2604.06268) adds mutual information.
"""

import math
from collections.abc import Mapping
from typing import TypeAlias

from pydantic import Field

from turnwise.settings import Settings
from turnwise.stability.baseline import DEEPEST, Baseline, Better
from turnwise.stability.findings import Finding, Kind
from turnwise.stability.health import Vitals

Evidence: TypeAlias = dict[str, tuple[float, float]]
"""By vital, its value now and what it is while the run is well."""

_BETTER: Mapping[str, Better] = {
    "reward_std": "higher",
    "token_entropy": "higher",
    "action_entropy": "higher",
    "gradient": "neither",
    "repeated_turns": "lower",
    "repeated_ngrams": "lower",
    "response_length": "neither",
    "invalid_actions": "lower",
    "early_stops": "lower",
    "information": "higher",
    "progress": "higher",
}
"""The vitals that have a baseline; `progress` is success, or the reward where the environment has no such word."""
_COMPANIONS: tuple[Kind, ...] = (
    "entropy_collapse",
    "template_collapse",
    "repetition",
    "gradient_spike",
    "success_drop",
    "invalid_actions",
    "early_stopping",
)
"""What makes a trap of collapsed variance: each is measured apart from rewards within a group."""
_EACH = 3.0
"""Deviations that each of two vitals must have summed up itself, however sure the other's decline is."""
_UNWELL: tuple[Kind, ...] = ("variance_collapse", "gradient_spike", "success_drop")
"""Signs under which a checkpoint is no place to come back to."""


class MonitorSettings(Settings):
    """When a measurement is a sign; every threshold is relative to the run's own baseline."""

    baseline_steps: int = Field(default=8, ge=1)
    """Steps whose median is the first baseline."""
    window: int = Field(default=5, ge=1)
    """Steps whose median is compared with the baseline."""
    patience: int = Field(default=3, ge=1)
    """Steps in a row for which a sign, or the trap's conjunction, must hold before it is a finding."""
    sigmas: float = Field(default=1.7, ge=0)
    """How many of a vital's own step-to-step deviations a median must also have moved."""
    allowance: float = Field(default=0.75, ge=0)
    """How many of its own deviations a step may lie below the baseline before it counts towards a decline."""
    decline: float = Field(default=5.0, gt=0, lt=DEEPEST)
    """What steps beyond that allowance must sum up to, in deviations, before variance or success alone is said to sink;
    a step within it takes away again."""
    joint_decline: float = Field(default=16.0, gt=0, lt=2 * DEEPEST)
    """What the sums of variance and success must come to together, before both sinking is a trap; each may be less
    sure than it would have to be alone."""
    follow_better: float = Field(default=0.1, ge=0, le=1)
    """How fast a baseline follows values that are better than it."""
    follow_worse: float = Field(default=0.01, ge=0, le=1)
    """How fast it follows worse ones, while there is no sign."""
    ceiling: float = Field(default=0.9, gt=0, le=1)
    """The success rate from which on a run counts as solved: variance and entropy then fall for a good reason."""
    variance_drop: float = Field(default=0.5, gt=0)
    """In-group deviation below this share of its baseline; above one half of success the share shrinks with
    2 √(p (1 − p)), as the deviation of any yes-or-no outcome does."""
    variance_decline: float = Field(default=0.9, gt=0)
    """The same, less far but for longer: an early sign, which makes a trap only together with a fall of success."""
    entropy_drop: float = Field(default=0.5, gt=0)
    """Entropy, of tokens or of whole turns, below this share of its baseline."""
    information_drop: float = Field(default=0.5, gt=0)
    """Mutual information below this share of its baseline, while entropy is not."""
    success_drop: float = Field(default=0.2, gt=0, lt=1)
    """Success lost, as a share of its best."""
    gradient_rise: float = Field(default=4.0, gt=1)
    """Gradient norms, two or more in a window, above this many times their baseline."""
    rate_rise: float = Field(default=0.3, gt=0, le=1)
    """Rates (repetition, invalid actions, early stops): the share of the way from baseline to 1 that was gone."""
    length_ratio: float = Field(default=2.0, gt=1)
    """Turns longer or shorter than their baseline by this factor."""
    information_every: int = Field(default=0, ge=0)
    """Measure mutual information at every so many steps; it costs a forward pass over `information_sample`² turns.
    0: never."""
    information_sample: int = Field(default=16, ge=2)
    """How many prompts and their reasoning are compared with each other."""


class Monitor:
    """Takes each step's vitals and says what is new to be found."""

    def __init__(self, settings: MonitorSettings) -> None:
        self.settings = settings
        self._of = {
            name: Baseline(
                better,
                steps=settings.baseline_steps,
                window=settings.window,
                follow_better=settings.follow_better,
                follow_worse=settings.follow_worse,
                allowance=settings.allowance,
            )
            for name, better in _BETTER.items()
        }
        self._streaks: dict[Kind, int] = {}

    def observe(self, step: int, vitals: Vitals) -> list[Finding]:
        """Findings that begin at this step: a sign or the alarm that has now held for `patience` steps."""
        progress = vitals.reward if vitals.success is None else vitals.success
        for name, baseline in self._of.items():
            baseline.add(progress if name == "progress" else getattr(vitals, name))
        success = None if vitals.success is None else self._progress
        signs = self._signs(success)
        trap = {} if self._moved("progress") > 0 else _conjunction(signs) or self._sinking_together(success)
        if trap:
            signs["echo_trap"] = trap
        self._streaks = {kind: self._streaks.get(kind, 0) + 1 for kind in signs}
        self._follow({name for evidence in signs.values() for name in evidence})
        return [
            Finding(kind=kind, step=step, severity="alarm" if kind == "echo_trap" else "sign", evidence=signs[kind])
            for kind, held in self._streaks.items()
            if held == self.settings.patience
        ]

    @property
    def alarmed(self) -> bool:
        """The Echo Trap's conjunction has held for long enough, and still does."""
        return self._streaks.get("echo_trap", 0) >= self.settings.patience

    @property
    def healthy(self) -> bool:
        """Nothing is seen that a run should not come back to."""
        return not any(kind in self._streaks for kind in (*_UNWELL, "echo_trap"))

    @property
    def signs(self) -> list[Kind]:
        """What is seen now, sustained or not."""
        return list(self._streaks)

    def look_afresh(self) -> None:
        """Something was done: what the run is well at stays, and what was seen lately is forgotten."""
        self._streaks = {}
        for baseline in self._of.values():
            baseline.forget_recent()

    def change_objective(self) -> None:
        """What is learnt by has changed, so that gradients have another scale."""
        self._of["gradient"].begin_again()
        self._streaks.pop("gradient_spike", None)

    def state_dict(self) -> dict[str, object]:
        baselines = {name: baseline.state_dict() for name, baseline in self._of.items()}
        return {"baselines": baselines, "streaks": dict(self._streaks)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        baselines, streaks = state["baselines"], state["streaks"]
        assert isinstance(baselines, Mapping)
        assert isinstance(streaks, Mapping)
        for name, baseline in self._of.items():
            baseline.load_state_dict(baselines[name])
        self._streaks = dict(streaks)

    def _signs(self, success: float | None) -> dict[Kind, Evidence]:
        """The signs of this step, each with its evidence."""
        limits = self.settings
        entropy = self._lower(("token_entropy", "action_entropy"), limits.entropy_drop)
        seen: dict[Kind, Evidence] = {
            "gradient_spike": self._spiking(),
            "length_drift": self._drifting(),
            "invalid_actions": self._risen(("invalid_actions",)),
        }
        if success is None or success < limits.ceiling:
            collapse = self._lower(("reward_std",), limits.variance_drop * _room(success))
            decline = self._sinking("reward_std", limits.variance_decline * _room(success))
            seen |= {
                "variance_collapse": collapse,
                "variance_decline": {} if collapse else decline,
                "entropy_collapse": entropy,
                "template_collapse": {} if entropy else self._lower(("information",), limits.information_drop),
                "repetition": self._risen(("repeated_turns", "repeated_ngrams")),
                "early_stopping": self._risen(("early_stops",)),
                "success_drop": self._sinking("progress", 1 - limits.success_drop),
            }
        return {kind: evidence for kind, evidence in seen.items() if evidence}

    def _lower(self, names: tuple[str, ...], share: float) -> Evidence:
        """Vitals that have lost so much of their baseline; a reward below zero has no share to lose."""
        chosen = {name: self._of[name] for name in names if self._moved(name) < 0 and self._of[name].centre > 0}
        return {name: (one.now, one.centre) for name, one in chosen.items() if one.now < share * one.centre}

    def _sinking(self, name: str, share: float, *, beyond: float | None = None) -> Evidence:
        """A vital that has lost so much of its baseline, and step by step what noise would hardly take."""
        one, sum_needed = self._of[name], self.settings.decline if beyond is None else beyond
        sinks = one.ready and one.decline > sum_needed and one.centre > 0 and one.now < share * one.centre
        return {name: (one.now, one.centre)} if sinks else {}

    def _sinking_together(self, success: float | None) -> Evidence:
        """Variance and success, where both sink: the trap before either has collapsed."""
        limits = self.settings
        if success is not None and success >= limits.ceiling:
            return {}
        variance = self._sinking("reward_std", limits.variance_decline * _room(success), beyond=_EACH)
        progress = self._sinking("progress", 1 - limits.success_drop, beyond=_EACH)
        joint = self._of["reward_std"].decline + self._of["progress"].decline
        return variance | progress if variance and progress and joint > limits.joint_decline else {}

    def _risen(self, names: tuple[str, ...]) -> Evidence:
        """Rates that have gone a good part of the way from their baseline to 1."""
        chosen = {name: self._of[name] for name in names if self._moved(name) > 0}
        share = self.settings.rate_rise
        return {
            name: (one.now, one.centre)
            for name, one in chosen.items()
            if one.now - one.centre > share * (1 - one.centre)
        }

    def _spiking(self) -> Evidence:
        """Two values of a window, not its median: spikes come and go. One alone is noise."""
        gradient = self._of["gradient"]
        if not gradient.ready:
            return {}
        second = sorted(gradient.recent)[max(0, len(gradient.recent) - 2)]
        far = second - gradient.centre > self.settings.sigmas * gradient.spread
        spikes = far and second > self.settings.gradient_rise * gradient.centre
        return {"gradient": (second, gradient.centre)} if spikes else {}

    def _drifting(self) -> Evidence:
        length, ratio = self._of["response_length"], self.settings.length_ratio
        drifts = self._moved("response_length") and not length.centre / ratio <= length.now <= length.centre * ratio
        return {"response_length": (length.now, length.centre)} if drifts else {}

    def _moved(self, name: str) -> int:
        """+1 or −1 where the newest median has left its baseline by more than noise; else 0."""
        baseline = self._of[name]
        if not baseline.ready or abs(baseline.now - baseline.centre) <= self.settings.sigmas * baseline.spread:
            return 0
        return 1 if baseline.now > baseline.centre else -1

    @property
    def _progress(self) -> float:
        progress = self._of["progress"]
        return progress.now if progress.recent else 0.0

    def _follow(self, shown: set[str]) -> None:
        """Moves the baselines of what is well; a new length is a sign once, and then a habit."""
        for name, baseline in self._of.items():
            if name not in shown or name == "response_length":
                baseline.follow()


def _conjunction(signs: Mapping[Kind, Evidence]) -> Evidence:
    """What makes a trap of signs: collapsed variance, and any companion."""
    companions = [kind for kind in _COMPANIONS if kind in signs]
    if "variance_collapse" not in signs or not companions:
        return {}
    return {name: pair for kind in ("variance_collapse", *companions) for name, pair in signs[kind].items()}


def _room(success: float | None) -> float:
    """How far a yes-or-no outcome can still spread, against one that is even: 1 up to one half, .6 at nine tenths."""
    return 1.0 if success is None or success <= 0.5 else 2 * math.sqrt(success * (1 - success))
