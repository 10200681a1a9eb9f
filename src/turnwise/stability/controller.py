"""What is done about what the monitor finds: nothing, a word, or StarPO-S from the last healthy checkpoint on.

Invariant: the step goes on counting after a return, so no sample is drawn or learnt from twice; all that decides the
next step is in `state_dict`. The controller says what to do and the trainer does it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import Field

from turnwise.settings import Settings
from turnwise.stability.filters import FilterSettings
from turnwise.stability.findings import Finding
from turnwise.stability.health import Vitals
from turnwise.stability.monitor import Monitor, MonitorSettings
from turnwise.stability.starpo_s import Regime, RemedySettings

Mode: TypeAlias = Literal["off", "monitor", "auto", "always"]


class StabilitySettings(Settings):
    """How a run keeps from collapsing, or notices that it does."""

    mode: Mode = "monitor"
    """`off`: nothing is measured; `monitor`: findings are said; `auto`: on an Echo Trap the run goes back to its last
    healthy checkpoint and on from there under `remedy`; `always`: under `remedy` from the first step."""
    filter: FilterSettings = FilterSettings()
    """Which groups are learnt from while no remedy is in force."""
    monitor: MonitorSettings = MonitorSettings()
    remedy: RemedySettings = RemedySettings()
    recovery: int = Field(default=50, ge=1)
    """Healthy steps in a row after which `auto` lays the remedy down again."""
    max_rollbacks: int = Field(default=2, ge=0)
    """How often `auto` may go back; after that, an alarm brings the remedy alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """`Act(kind="treat", step=55, return_to=40)`: after step 55, back to the weights of step 40, under the remedy."""

    kind: Literal["treat", "release"]
    step: int
    return_to: int | None = None
    """The checkpoint to go back to; None goes on with the weights as they are."""

    @property
    def sentence(self) -> str:
        if self.kind == "release":
            return "healthy again: StarPO-S is laid down"
        back = "" if self.return_to is None else f"back to the checkpoint of step {self.return_to}, "
        return f"{back}StarPO-S is in force"

    def to_json(self) -> dict[str, object]:
        """A line of a run's `findings.jsonl`."""
        return {"step": self.step, "kind": self.kind, "return_to": self.return_to, "sentence": self.sentence}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one step came to."""

    findings: tuple[Finding, ...] = ()
    act: Act | None = None
    metrics: Mapping[str, float]

    @property
    def events(self) -> tuple[Finding | Act, ...]:
        """All that is worth a line in the log."""
        return self.findings if self.act is None else (*self.findings, self.act)


class Controller:
    """One run's course: the regime in force, and when it changes."""

    def __init__(self, settings: StabilitySettings, own: Regime) -> None:
        self.settings = settings
        self.monitor = Monitor(settings.monitor)
        self._own, self._remedied = own, settings.remedy.over(own)
        self.treated = settings.mode == "always"
        self.warm_until = self._warm_from(0) if self.treated else 0
        """The step before which only the critic learns."""
        self.healthy_checkpoint = 0
        """The one to come back to: after it the run stayed well for a while."""
        self._candidate: int | None = None
        self._trained_from = 0
        self._rollbacks = 0
        self._well_for = 0

    @property
    def watches(self) -> bool:
        return self.settings.mode != "off"

    @property
    def regime(self) -> Regime:
        """What the next step is chosen, credited and learnt by."""
        return self._remedied if self.treated else self._own

    def observe(self, step: int, vitals: Vitals | None, *, may_act: bool = True) -> Verdict:
        """Judges the step that was just learnt from; without `may_act`, an alarm waits until a step that may."""
        findings = self.monitor.observe(step, vitals) if vitals is not None else []
        self._look_back(step)
        metrics = {
            "stability/mode": float(self.treated),
            "stability/alarm": float(self.monitor.alarmed),
            "stability/signs": float(len(self.monitor.signs)),
            "stability/rollbacks": float(self._rollbacks),
            "stability/trained_from": float(self._trained_from),
        }
        self._trained_from = step
        act = self._decide(step) if may_act and self.settings.mode == "auto" else None
        return Verdict(findings=tuple(findings), act=act, metrics=metrics)

    def carry_out(self, act: Act, then: Mapping[str, object] | None = None) -> None:
        """Changes the regime; `then` is the controller's state in the checkpoint that the run returns to.

        What the monitor knew at that time comes back with the weights it knew it of; nothing else does.
        """
        self.treated = act.kind == "treat"
        self._well_for, self._candidate = 0, None
        if self.treated:
            self.warm_until = self._warm_from(act.step)
        if then is not None:
            assert act.return_to is not None
            self._rollbacks += 1
            self._trained_from = act.return_to
            self.monitor.load_state_dict(_section(then, "monitor"))
        self.monitor.look_afresh()
        self.monitor.change_objective()

    def choose_checkpoint(self, step: int) -> None:
        """A checkpoint is about to be made: one to come back to, if the run is well and stays so for a while."""
        if self.settings.mode == "auto" and self.monitor.healthy and self._candidate is None:
            self._candidate = step

    @property
    def wanted_checkpoints(self) -> set[int]:
        """Those that must not be pruned; the start of training is always among them."""
        return {0, self.healthy_checkpoint} | (set() if self._candidate is None else {self._candidate})

    def state_dict(self) -> dict[str, object]:
        return {
            "monitor": self.monitor.state_dict(),
            "treated": self.treated,
            "warm_until": self.warm_until,
            "healthy_checkpoint": self.healthy_checkpoint,
            "candidate": self._candidate,
            "trained_from": self._trained_from,
            "rollbacks": self._rollbacks,
            "well_for": self._well_for,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        treated, candidate = state["treated"], state["candidate"]
        assert isinstance(treated, bool)
        assert candidate is None or isinstance(candidate, int)
        self.monitor.load_state_dict(_section(state, "monitor"))
        self.treated, self._candidate = treated, candidate
        self.warm_until = _whole(state, "warm_until")
        self.healthy_checkpoint = _whole(state, "healthy_checkpoint")
        self._trained_from = _whole(state, "trained_from")
        self._rollbacks = _whole(state, "rollbacks")
        self._well_for = _whole(state, "well_for")

    def _look_back(self, step: int) -> None:
        """Signs come late, so a checkpoint is trusted only after the run has stayed well beyond it."""
        if not self.monitor.healthy:
            self._well_for, self._candidate = 0, None
            return
        self._well_for += 1
        if self._candidate is not None and step - self._candidate >= self.settings.monitor.window:
            self.healthy_checkpoint, self._candidate = self._candidate, None

    def _decide(self, step: int) -> Act | None:
        if self.monitor.alarmed:
            if self._rollbacks < self.settings.max_rollbacks:
                return Act(kind="treat", step=step, return_to=self.healthy_checkpoint)
            return None if self.treated else Act(kind="treat", step=step)
        if self.treated and self._well_for >= self.settings.recovery:
            return Act(kind="release", step=step)
        return None

    def _warm_from(self, step: int) -> int:
        """A critic that the run did not have must learn to judge before anything is learnt from its word."""
        new_critic = self._remedied.credit.needs_critic and not self._own.credit.needs_critic
        return step + self.settings.remedy.critic_warmup if new_critic else 0


def _whole(state: Mapping[str, object], name: str) -> int:
    value = state[name]
    assert isinstance(value, int)
    return value


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section
