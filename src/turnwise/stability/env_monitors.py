"""The environments of a mixture, each watched by a monitor of its own.

Invariant: an environment is judged by its own groups alone, against its own healthy past, so that one which is
forgotten or stops varying is found though the others hide it in every mean. The levels of the whole run are means over
environments, each by its newest step: another share of the groups is then no change of health.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from turnwise.stability.findings import Finding
from turnwise.stability.health import HealthMetrics
from turnwise.stability.monitor import Monitor, MonitorSettings

_AVERAGED = (
    "success",
    "reward",
    "reward_std",
    "zero_variance",
    "token_entropy",
    "action_entropy",
    "repeated_turns",
    "repeated_ngrams",
    "response_length",
    "invalid_actions",
    "early_stops",
)
"""Measured from episodes, and so environment by environment; gradients and clipping are the update's."""


class EnvMonitors:
    """Monitors by environment, made when an environment is first played; empty outside a mixture."""

    def __init__(self, settings: MonitorSettings, *, cold_start: bool) -> None:
        self._settings, self._cold_start = settings, cold_start
        self._monitors: dict[str, Monitor] = {}
        self._newest: dict[str, dict[str, float | None]] = {}
        """By environment: its levels in the last step that played it."""

    def observe(self, step: int, by_env: Mapping[str, HealthMetrics], *, compares_groups: bool) -> list[Finding]:
        """Findings that begin at this step, each with its environment: signs, since only the whole run is acted on."""
        found: list[Finding] = []
        for name, health in by_env.items():
            if name not in self._monitors:
                self._monitors[name] = Monitor(self._settings, cold_start=self._cold_start)
            self._newest[name] = {metric: getattr(health, metric) for metric in _AVERAGED}
            own = self._monitors[name].observe(step, health, compares_groups=compares_groups)
            found += [replace(finding, env=name, severity="sign") for finding in own]
        return found

    def mean_of(self, health: HealthMetrics) -> HealthMetrics:
        """The health of the whole run: with means over environments, if there are several."""
        if not self._newest:
            return health
        means = {name: _mean([levels[name] for levels in self._newest.values()]) for name in _AVERAGED}
        return replace(health, **means)  # type: ignore[arg-type]  # None only where no environment reports it

    def restart(self) -> None:
        """After a change of algorithm settings, as `Monitor.restart`."""
        for monitor in self._monitors.values():
            monitor.restart()

    def state_dict(self) -> dict[str, object]:
        monitors = {name: monitor.state_dict() for name, monitor in self._monitors.items()}
        return {"monitors": monitors, "newest": {name: dict(levels) for name, levels in self._newest.items()}}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        monitors, newest = state.get("monitors", {}), state.get("newest", {})
        assert isinstance(monitors, Mapping)
        assert isinstance(newest, Mapping)
        self._monitors = {name: Monitor(self._settings, cold_start=self._cold_start) for name in monitors}
        for name, monitor in self._monitors.items():
            monitor.load_state_dict(monitors[name])
        self._newest = {name: dict(levels) for name, levels in newest.items()}


def env_metrics(env: str, health: HealthMetrics) -> Iterator[tuple[str, float]]:
    """`health/env=bandit/reward_std` and the like: what is measured from the environment's own episodes."""
    for name in _AVERAGED:
        value = getattr(health, name)
        if value is not None:
            yield f"health/env={env}/{name}", value


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
