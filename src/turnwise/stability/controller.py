"""The controller: one decision a step about algorithm settings, rollbacks and checkpoints, from the run's health.

Invariant: the step goes on counting after a rollback, so no sample is drawn or trained on twice; all that determines
the next decision is in `state_dict`. The controller decides, and the trainer applies the decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pydantic import Field

from turnwise.settings import Settings
from turnwise.stability.env_monitors import EnvMonitors, env_metrics
from turnwise.stability.filters import FilterSettings
from turnwise.stability.findings import Finding
from turnwise.stability.health import HealthMetrics
from turnwise.stability.monitor import Monitor, MonitorSettings
from turnwise.stability.starpo_s import AlgorithmSettings, StarPOSSettings

Mode: TypeAlias = Literal["off", "monitor", "auto", "always"]


class StabilitySettings(Settings):
    """How a run notices a collapse, and what it does about it."""

    mode: Mode = "monitor"
    """`off`: nothing is measured; `monitor`: findings are reported; `auto`: on an alarm the run rolls back to its last
    healthy checkpoint, and goes on under `starpo_s` after an Echo Trap, by smaller updates after a collapse of success
    or another alarm; `always`: `starpo_s` from the first step."""
    filter: FilterSettings = FilterSettings()
    """Which groups are trained on while StarPO-S is disabled."""
    monitor: MonitorSettings = MonitorSettings()
    starpo_s: StarPOSSettings = StarPOSSettings()
    recovery: int = Field(default=50, ge=1)
    """Consecutive healthy steps after which `auto` disables StarPO-S again."""
    max_rollbacks: int = Field(default=3, ge=0)
    """How often `auto` may roll back; after that, an alarm enables StarPO-S without a rollback."""
    lr_backoff: float = Field(default=0.5, gt=0, lt=1)
    """What `auto` multiplies the learning rate by, each time, where updates were too large: a rollback from a collapse
    of success, or from an alarm while StarPO-S is enabled. From the first on, a step makes one update, too."""

    def unread(self) -> Mapping[str, str]:
        unread = {} if self.mode == "auto" else dict.fromkeys(("recovery", "max_rollbacks", "lr_backoff"), "mode")
        return unread if self.mode != "off" else {**unread, "monitor": "mode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """`Action(kind="enable_starpo_s", step=55, rollback_to=40)`: after step 55, go on from the weights of step 40."""

    kind: Literal["enable_starpo_s", "disable_starpo_s", "reduce_updates"]
    step: int
    rollback_to: int | None = None
    """The checkpoint whose weights to go on from; None keeps the weights."""
    lr_share: float | None = None
    """Of `reduce_updates`: the share of the run's learning rate from here on."""

    @property
    def sentence(self) -> str:
        if self.kind == "disable_starpo_s":
            return "healthy again; StarPO-S disabled"
        rolled_back = "" if self.rollback_to is None else f"rolled back to step {self.rollback_to}; "
        if self.kind == "reduce_updates":
            return f"{rolled_back}one update a step, at {self.lr_share:g} of the learning rate"
        return f"{rolled_back}StarPO-S enabled"

    def to_json(self) -> dict[str, object]:
        """A line of a run's `findings.jsonl`."""
        line = {"step": self.step, "kind": self.kind, "rollback_to": self.rollback_to, "sentence": self.sentence}
        return {**line, **({} if self.lr_share is None else {"lr_share": self.lr_share})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the trainer goes by until the next decision, and what the controller has to report."""

    settings: AlgorithmSettings
    """In force from the next step on."""
    critic_warmup_until: int = 0
    """The step before which only the critic is trained."""
    keep_checkpoints: frozenset[int] = frozenset({0})
    """Checkpoints that must not be pruned; the start of training is always one of them."""
    action: Action | None = None
    """The change at this step, if any: `settings` differ from those before, and weights if it has a `rollback_to`."""
    findings: tuple[Finding, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Finding | Action, ...]:
        """Everything to log."""
        return self.findings if self.action is None else (*self.findings, self.action)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    """A checkpoint to roll back to, and the monitor's state at that time, which comes back with the weights."""

    step: int
    monitor: Mapping[str, object]
    envs: Mapping[str, object]
    """The state of the environments' own monitors, in a mixture."""


class Controller:
    """Decides for one run: `decision = controller.decide(step, health)` after every step."""

    def __init__(self, settings: StabilitySettings, own: AlgorithmSettings, *, cold_start: bool = True) -> None:
        self._settings = settings
        self._monitor = Monitor(settings.monitor, cold_start=cold_start)
        self._envs = EnvMonitors(settings.monitor, cold_start=cold_start)
        self._own = own
        self._starpo_s = settings.starpo_s.apply_to(own) if settings.mode in ("auto", "always") else own
        self._enabled = settings.mode == "always"
        self._lr_share = 1.0
        self._critic_warmup_until = self._warmup_from(0) if self._enabled else 0
        start = self._remember(0)
        self._healthy = start
        """The checkpoint to roll back to: after it the run stayed healthy for a while."""
        self._candidate = start if settings.mode == "auto" else None
        """The next one, if the run stays healthy."""
        self._trained_from = 0
        self._rollbacks = 0
        self._healthy_steps = 0

    @property
    def current(self) -> Decision:
        """The decision in force, for a run that starts or resumes; it reports nothing new."""
        candidate = set() if self._candidate is None else {self._candidate.step}
        return Decision(
            settings=replace(self._starpo_s if self._enabled else self._own, lr_share=self._lr_share),
            critic_warmup_until=self._critic_warmup_until,
            keep_checkpoints=frozenset({0, self._healthy.step} | candidate),
        )

    def decide(
        self,
        step: int,
        health: HealthMetrics | None,
        *,
        by_env: Mapping[str, HealthMetrics] | None = None,
        checkpoint: bool = False,
        may_act: bool = True,
    ) -> Decision:
        """The decision after a step.

        Args:
            step: The step that was just trained.
            health: Its measurements; None if no episode of it was played.
            by_env: Those of each environment of a mixture, which are watched by themselves; the controller acts on the
                whole run, whose levels are then means over the environments.
            checkpoint: Whether a checkpoint of this step is about to be saved.
            may_act: Whether settings may change now; if not, an alarm waits for a step at which they may.
        """
        if self._settings.mode == "off":
            return self.current
        compares_groups = self.current.settings.credit.compares_groups
        findings: list[Finding] = []
        if health is not None:
            findings += self._envs.observe(step, by_env or {}, compares_groups=compares_groups)
            health = self._envs.mean_of(health)
            findings += self._monitor.observe(step, health, compares_groups=compares_groups)
        self._judge_checkpoints(step)
        metrics = self._metrics() | (health.metrics() if health is not None else {})
        metrics |= {name: value for env, own in (by_env or {}).items() for name, value in env_metrics(env, own)}
        self._trained_from = step
        action = self._choose_action(step) if may_act and self._settings.mode == "auto" else None
        if action is not None:
            self._apply(action)
        # While the monitor is not calibrated, a run looks healthy whatever it is.
        known_healthy = self._monitor.healthy and self._monitor.calibrated
        if checkpoint and self._settings.mode == "auto" and known_healthy and self._candidate is None:
            self._candidate = self._remember(step)
        return replace(self.current, action=action, findings=tuple(findings), metrics=metrics)

    def state_dict(self) -> dict[str, object]:
        return {
            "monitor": self._monitor.state_dict(),
            "envs": self._envs.state_dict(),
            "enabled": self._enabled,
            "lr_share": self._lr_share,
            "critic_warmup_until": self._critic_warmup_until,
            "healthy": _pack(self._healthy),
            "candidate": None if self._candidate is None else _pack(self._candidate),
            "trained_from": self._trained_from,
            "rollbacks": self._rollbacks,
            "healthy_steps": self._healthy_steps,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        enabled = state["enabled"]
        assert isinstance(enabled, bool)
        self._enabled = enabled
        lr_share = state.get("lr_share", 1.0)  # a checkpoint may be older than this
        assert isinstance(lr_share, float)
        self._lr_share = lr_share
        self._monitor.load_state_dict(_section(state, "monitor"))
        self._envs.load_state_dict(_section({"envs": {}, **state}, "envs"))  # a checkpoint may be older than this
        self._healthy = _unpack(_section(state, "healthy"))
        self._candidate = None if state["candidate"] is None else _unpack(_section(state, "candidate"))
        self._critic_warmup_until = _whole(state, "critic_warmup_until")
        self._trained_from = _whole(state, "trained_from")
        self._rollbacks = _whole(state, "rollbacks")
        self._healthy_steps = _whole(state, "healthy_steps")

    def _metrics(self) -> dict[str, float]:
        return {
            "stability/mode": float(self._enabled),
            "stability/alarm": float(self._monitor.alarmed),
            "stability/signs": float(len(self._monitor.signs)),
            "stability/rollbacks": float(self._rollbacks),
            "stability/trained_from": float(self._trained_from),
        }

    def _judge_checkpoints(self, step: int) -> None:
        """Signs come late, so a checkpoint counts as healthy only after the run has stayed healthy beyond it."""
        if not self._monitor.healthy:
            self._healthy_steps, self._candidate = 0, None
            return
        self._healthy_steps += 1
        if self._candidate is not None and step - self._candidate.step >= self._settings.monitor.window:
            self._healthy, self._candidate = self._candidate, None

    def _choose_action(self, step: int) -> Action | None:
        """On an alarm, what answers its cause: StarPO-S where the groups that are trained on mislead, smaller updates
        where updates destroy what the run could do, and where StarPO-S was not enough."""
        if self._monitor.alarmed:
            if self._rollbacks >= self._settings.max_rollbacks:
                return None if self._enabled else Action(kind="enable_starpo_s", step=step)
            back = self._healthy.step
            if self._enabled or self._monitor.collapsed:
                share = self._settings.lr_backoff * self._lr_share
                return Action(kind="reduce_updates", step=step, rollback_to=back, lr_share=share)
            return Action(kind="enable_starpo_s", step=step, rollback_to=back)
        if self._enabled and self._healthy_steps >= self._settings.recovery:
            return Action(kind="disable_starpo_s", step=step)
        return None

    def _apply(self, action: Action) -> None:
        self._healthy_steps, self._candidate = 0, None
        if action.lr_share is not None:
            self._lr_share = action.lr_share
        else:
            self._enabled = action.kind == "enable_starpo_s"
        if self._enabled:
            self._critic_warmup_until = self._warmup_from(action.step)
        if action.rollback_to is not None:
            self._rollbacks += 1
            self._trained_from = action.rollback_to
            self._monitor.load_state_dict(self._healthy.monitor)
            self._envs.load_state_dict(self._healthy.envs)
        self._monitor.restart()
        self._envs.restart()

    def _remember(self, step: int) -> _Checkpoint:
        return _Checkpoint(step=step, monitor=self._monitor.state_dict(), envs=self._envs.state_dict())

    def _warmup_from(self, step: int) -> int:
        """A critic that the run itself does not have is trained before the policy learns from its values."""
        new_critic = self._starpo_s.credit.needs_critic and not self._own.credit.needs_critic
        return step + self._settings.starpo_s.critic_warmup if new_critic else 0


def _pack(checkpoint: _Checkpoint) -> dict[str, object]:
    return {"step": checkpoint.step, "monitor": dict(checkpoint.monitor), "envs": dict(checkpoint.envs)}


def _unpack(state: Mapping[str, object]) -> _Checkpoint:
    envs = _section({"envs": {}, **state}, "envs")  # a checkpoint may be older than this
    return _Checkpoint(step=_whole(state, "step"), monitor=_section(state, "monitor"), envs=envs)


def _whole(state: Mapping[str, object], name: str) -> int:
    value = state[name]
    assert isinstance(value, int)
    return value


def _section(state: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = state[name]
    assert isinstance(section, Mapping)
    return section
