"""Watches a run for collapse, measured against the run's own healthy past.

Invariant: no single step and no single sign raises the alarm, and without harm there is none. The Echo Trap is a
conjunction that lasts: rewards within groups that no longer vary though the task is not solved, together with a sign of
harm while success does not rise, or with a policy that only narrows if success has not risen since calibration; or,
sooner, rewards that vary less and less while success falls with them; or, whatever came before, next to no success
where there was some. A run that narrows because it learns is healthy, and so is one whose groups all succeed.

Source: RAGEN (arXiv 2504.20073). There the fall of in-group reward deviation and of entropy comes tens of steps before
that of reward, and gradient spikes mark the point of no return; RAGEN-2 (arXiv 2604.06268) adds mutual information.
"""

import math
from collections.abc import Mapping
from typing import TypeAlias

from pydantic import Field

from turnwise.settings import Settings
from turnwise.stability.findings import Finding, Kind
from turnwise.stability.health import HealthMetrics
from turnwise.stability.lost_success import LostSignal, LostSuccess
from turnwise.stability.signal import RewardSignal
from turnwise.stability.tracked import Better, TrackedMetric

Evidence: TypeAlias = dict[str, tuple[float, float]]
"""By health metric: its level now, and its level while the run was healthy."""

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
    "reward": "higher",
    "on_policy_clip": "neither",
}
"""The metrics that are tracked; `progress` is success, or the reward if the environment does not report success."""
_HARM: tuple[Kind, ...] = ("template_collapse", "repetition", "success_drop", "invalid_actions", "early_stopping")
"""Signs that together with collapsed variance make an Echo Trap: none is computed from rewards within a group."""
_NARROWING: tuple[Kind, ...] = ("entropy_collapse", "gradient_spike")
"""Signs that do so only in a run whose success has not risen: a policy that learns narrows, too."""
_UNHEALTHY: tuple[Kind, ...] = ("gradient_spike", "success_drop")
"""Signs under which a checkpoint is not one to roll back to."""

# Thresholds, chosen by replaying the monitor over runs of the bandit and over curves of noise (docs/stability.md).
# Each is relative to the run's own healthy levels.
SIGMAS = 1.7
"""Standard deviations of its own step-to-step noise that a median must have moved by to count as moved."""
DECLINE = 5.0
"""Cumulative decline, in standard deviations, from which variance or success alone counts as sinking."""
JOINT_DECLINE = 16.0
"""Sum of both declines from which variance and success sinking together is a trap."""
EACH_DECLINE = 3.0
"""Decline that each of the two must have on its own for that."""
RISE = 5.0
"""Cumulative rise, in standard deviations, from which success or reward counts as higher than at calibration."""
SOLVED = 0.9
"""Success rate from which a run counts as solved: variance and entropy then fall for a good reason."""
VARIANCE_DROP = 0.5
"""Variance has collapsed below this share of its healthy level. Above one half of success the share shrinks with
2 √(p (1 − p)), as the standard deviation of any yes-or-no outcome does."""
VARIANCE_DECLINE = 0.9
"""Variance declines below this share, for longer: an early sign, a trap only together with a fall of success."""
ENTROPY_DROP = 0.5
"""Entropy, of tokens or of whole turns, has collapsed below this share of its healthy level."""
INFORMATION_DROP = 0.5
"""Mutual information has collapsed below this share, while entropy has not."""
SUCCESS_DROP = 0.2
"""Success has dropped by this share of its healthy level."""
COLLAPSED = 0.5
"""Below this share of its healthy level success has collapsed: what the run could do is being destroyed, which is the
work of updates that are too large rather than of what they are computed from."""
GRADIENT_RISE = 4.0
"""Two gradient norms of a window above this many times their healthy level are a spike."""
RATE_RISE = 0.3
"""A rate (repetition, invalid actions, early stops) has risen by this share of the way from its healthy level to 1."""
LENGTH_RATIO = 2.0
"""Turns have drifted when they are longer or shorter than their healthy level by this factor."""

ON_POLICY_CLIP = 0.03
"""Share of tokens clipped on-policy above which sampler and learner disagree. Not relative to the run's own past: where
both compute the same policy it is 0."""

CONTEXT_FULL = 0.25
"""Share of episodes cut off by a full context above which the limits do not fit the task. Not relative either."""


class MonitorSettings(Settings):
    """How soon the monitor speaks, and what it measures."""

    calibration_steps: int = Field(default=8, ge=1)
    """Steps whose median is the first healthy level of each metric."""
    window: int = Field(default=5, ge=1)
    """Recent steps whose median is compared with the healthy level."""
    patience: int = Field(default=3, ge=1)
    """Consecutive steps a sign, or the trap's conjunction, must hold to become a finding."""
    information_every: int = Field(default=0, ge=0)
    """Measure mutual information every so many steps, by a forward pass over `information_sample`² turns; 0: never."""
    information_sample: int = Field(default=16, ge=2)
    """How many prompts and their reasoning are compared with each other."""


class Monitor:
    """Takes each step's health metrics and returns new findings."""

    def __init__(self, settings: MonitorSettings, *, cold_start: bool = True) -> None:
        self.settings = settings
        self._cold_start = cold_start
        self._tracked = {
            name: TrackedMetric(better, calibration_steps=settings.calibration_steps, window=settings.window)
            for name, better in _BETTER.items()
        }
        self._lost = LostSuccess()
        self._lost_signal = LostSignal()
        self._collapsed = False
        self._streaks: dict[Kind, int] = {}
        self._paid: dict[str, bool] = {}
        """By reward channel: whether it was ever paid in this run."""

    def observe(self, step: int, health: HealthMetrics, *, compares_groups: bool = True) -> list[Finding]:
        """Findings that begin at this step: a sign or the alarm that has now held for `patience` steps.

        `compares_groups`: whether the estimator in force learns from differences within groups alone.
        """
        progress = health.reward if health.success is None else health.success
        for name, metric in self._tracked.items():
            metric.add(progress if name == "progress" else getattr(health, name))
        success = None if health.success is None else self._progress
        signs = self._signs(success)
        trap = self._conjunction(signs) or self._sinking_together(success)
        signal, lost = health.signal, {}
        if signal is not None:
            lost_signal = self._lost_signal.add(signal, health.reward, health.zero_variance)
            lost = self._lost.add(signal, health.reward_std) or lost_signal
            trap = trap or lost
            self._paid |= {name: paid or self._paid.get(name, False) for name, paid in signal.paid.items()}
            if not signal.teaches(compares_groups=compares_groups):
                signs["no_signal"] = {"zero_variance": (health.zero_variance, 0.0)}
        if trap:
            signs["echo_trap"] = trap
        self._collapsed = bool(lost) or bool(trap and self._sinking("progress", COLLAPSED))
        if health.context_full > CONTEXT_FULL:
            signs["context_full"] = {"context_full": (health.context_full, 0.0)}
        self._streaks = {kind: self._streaks.get(kind, 0) + 1 for kind in signs}
        self._follow({name for evidence in signs.values() for name in evidence})
        return [
            Finding(
                kind="success_collapse" if kind == "echo_trap" and self._collapsed else kind,
                step=step,
                severity="alarm" if kind == "echo_trap" else "sign",
                evidence=signs[kind],
                causes=self._causes(signal) if kind == "no_signal" and signal is not None else (),
            )
            for kind, held in self._streaks.items()
            if held == self.settings.patience
        ]

    def _causes(self, signal: RewardSignal) -> tuple[str, ...]:
        never_paid = [name for name, paid in self._paid.items() if not paid]
        return signal.causes(never_paid=never_paid, cold_start=self._cold_start)

    @property
    def alarmed(self) -> bool:
        """The Echo Trap's conjunction, or the loss of success, has held for `patience` steps and still does."""
        return self._streaks.get("echo_trap", 0) >= self.settings.patience

    @property
    def collapsed(self) -> bool:
        """The alarm is one of success that has collapsed."""
        return self.alarmed and self._collapsed

    @property
    def calibrated(self) -> bool:
        """Whether variance has a healthy level to fall from; not in the first steps of a run, nor after an action."""
        return self._tracked["reward_std"].ready

    @property
    def healthy(self) -> bool:
        """No sign that would make a checkpoint one not to roll back to."""
        narrow = "variance_collapse" in self._streaks and not self._has_risen
        lost = self._lost.suspected or self._lost_signal.suspected
        return not (narrow or lost or any(kind in self._streaks for kind in (*_UNHEALTHY, "echo_trap")))

    @property
    def signs(self) -> list[Kind]:
        """Signs of the last step, sustained or not; equal rewards and a full context are no signs of collapse."""
        return [kind for kind in self._streaks if kind not in ("no_signal", "context_full")]

    def restart(self) -> None:
        """After a change of algorithm settings: the level of success stays, since it is what must not be lost; all else
        is calibrated anew on what follows, which has another objective and, after a rollback, is another policy."""
        self._streaks, self._collapsed = {}, False
        self._lost.forget_recent()
        self._lost_signal.forget_recent()
        for name, metric in self._tracked.items():
            metric.recalibrate(keep_level=name == "progress")

    def state_dict(self) -> dict[str, object]:
        tracked = {name: metric.state_dict() for name, metric in self._tracked.items()}
        return {
            "tracked": tracked,
            "streaks": dict(self._streaks),
            "paid": dict(self._paid),
            "lost": self._lost.state_dict(),
            "lost_signal": self._lost_signal.state_dict(),
            "collapsed": self._collapsed,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        tracked, streaks = state["tracked"], state["streaks"]
        assert isinstance(tracked, Mapping)
        assert isinstance(streaks, Mapping)
        for name, metric in self._tracked.items():
            if name in tracked:  # a checkpoint may be older than a metric
                metric.load_state_dict(tracked[name])
        self._streaks = dict(streaks)
        self._collapsed = bool(state.get("collapsed", False))
        paid = state.get("paid", {})  # a checkpoint may be older than this
        assert isinstance(paid, Mapping)
        self._paid = dict(paid)
        for name, part in (("lost", self._lost), ("lost_signal", self._lost_signal)):
            counts = state.get(name)  # a checkpoint may be older than these
            if isinstance(counts, Mapping):
                part.load_state_dict(counts)

    def _signs(self, success: float | None) -> dict[Kind, Evidence]:
        """The signs of this step, each with its evidence."""
        entropy = self._lower(("token_entropy", "action_entropy"), ENTROPY_DROP)
        seen: dict[Kind, Evidence] = {
            "gradient_spike": self._spiking(),
            "length_drift": self._drifting(),
            "invalid_actions": self._risen(("invalid_actions",)),
            "on_policy_clipping": self._clipping(),
        }
        if success is None or success < SOLVED:
            collapse = self._lower(("reward_std",), VARIANCE_DROP * _possible_std(success))
            decline = self._sinking("reward_std", VARIANCE_DECLINE * _possible_std(success))
            seen |= {
                "variance_collapse": collapse,
                "variance_decline": {} if collapse else decline,
                "entropy_collapse": entropy,
                "template_collapse": {} if entropy else self._lower(("information",), INFORMATION_DROP),
                "repetition": self._risen(("repeated_turns", "repeated_ngrams")),
                "early_stopping": self._risen(("early_stops",)),
                "success_drop": self._sinking("progress", 1 - SUCCESS_DROP),
            }
        return {kind: evidence for kind, evidence in seen.items() if evidence}

    def _lower(self, names: tuple[str, ...], share: float) -> Evidence:
        """Metrics below a share of their healthy level; a level at or below zero has no share."""
        chosen = {name: self._tracked[name] for name in names if self._moved(name) < 0}
        return {
            name: (metric.now, metric.healthy)
            for name, metric in chosen.items()
            if metric.healthy > 0 and metric.now < share * metric.healthy
        }

    def _sinking(self, name: str, share: float, *, decline: float | None = None) -> Evidence:
        """A metric below a share of its healthy level whose cumulative decline is beyond noise."""
        metric, needed = self._tracked[name], DECLINE if decline is None else decline
        low = metric.ready and metric.healthy > 0 and metric.now < share * metric.healthy
        return {name: (metric.now, metric.healthy)} if low and metric.decline > needed else {}

    def _conjunction(self, signs: Mapping[Kind, Evidence]) -> Evidence:
        """The evidence of an Echo Trap: collapsed variance, and a companion that success does not contradict."""
        if "variance_collapse" not in signs or self._moved("progress") > 0:
            return {}
        harm = [kind for kind in _HARM if kind in signs]
        narrowing = [kind for kind in _NARROWING if kind in signs]
        if not harm and (not narrowing or self._has_risen):
            return {}
        return {name: pair for kind in ("variance_collapse", *narrowing, *harm) for name, pair in signs[kind].items()}

    def _sinking_together(self, success: float | None) -> Evidence:
        """Variance and success, if both sink: the trap before either has collapsed."""
        if success is not None and success >= SOLVED:
            return {}
        variance = self._sinking("reward_std", VARIANCE_DECLINE * _possible_std(success), decline=EACH_DECLINE)
        progress = self._sinking("progress", 1 - SUCCESS_DROP, decline=EACH_DECLINE)
        joint = self._tracked["reward_std"].decline + self._tracked["progress"].decline
        return variance | progress if variance and progress and joint > JOINT_DECLINE else {}

    def _risen(self, names: tuple[str, ...]) -> Evidence:
        """Rates that have risen a good part of the way from their healthy level to 1."""
        chosen = {name: self._tracked[name] for name in names if self._moved(name) > 0}
        return {
            name: (metric.now, metric.healthy)
            for name, metric in chosen.items()
            if metric.now - metric.healthy > RATE_RISE * (1 - metric.healthy)
        }

    def _spiking(self) -> Evidence:
        """By the second largest value of a window, not its median: spikes come and go, and one alone is noise."""
        gradient = self._tracked["gradient"]
        if not gradient.ready:
            return {}
        second = sorted(gradient.recent)[max(0, len(gradient.recent) - 2)]
        far = second - gradient.healthy > SIGMAS * gradient.noise
        return {"gradient": (second, gradient.healthy)} if far and second > GRADIENT_RISE * gradient.healthy else {}

    def _drifting(self) -> Evidence:
        length = self._tracked["response_length"]
        drifts = (
            self._moved("response_length")
            and not length.healthy / LENGTH_RATIO <= length.now <= length.healthy * LENGTH_RATIO
        )
        return {"response_length": (length.now, length.healthy)} if drifts else {}

    def _clipping(self) -> Evidence:
        clip = self._tracked["on_policy_clip"]
        return {"on_policy_clip": (clip.now, 0.0)} if clip.recent and clip.now > ON_POLICY_CLIP else {}

    def _moved(self, name: str) -> int:
        """+1 or −1 if the recent median differs from the healthy level by more than noise; else 0."""
        metric = self._tracked[name]
        if not metric.ready or abs(metric.now - metric.healthy) <= SIGMAS * metric.noise:
            return 0
        return 1 if metric.now > metric.healthy else -1

    @property
    def _has_risen(self) -> bool:
        """Since calibration; by the reward, too, which shaping pays before the first success."""
        return any(self._tracked[name].rise > RISE for name in ("progress", "reward"))

    @property
    def _progress(self) -> float:
        progress = self._tracked["progress"]
        return progress.now if progress.recent else 0.0

    def _follow(self, shown: set[str]) -> None:
        """Updates the healthy level of metrics without a sign; length always, so that its drift is reported once."""
        for name, metric in self._tracked.items():
            if name not in shown or name == "response_length":
                metric.follow()


def _possible_std(success: float | None) -> float:
    """The standard deviation of a yes-or-no outcome, against an even one: 1 up to one half, .6 at nine tenths."""
    return 1.0 if success is None or success <= 0.5 else 2 * math.sqrt(success * (1 - success))
