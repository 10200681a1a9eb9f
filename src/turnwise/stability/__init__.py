"""Stable training: which groups are trained on, what a collapse looks like, and one decision a step about it."""

from turnwise.stability.controller import Action, Controller, Decision, Mode, StabilitySettings
from turnwise.stability.filters import FilterSettings, Selection, select
from turnwise.stability.findings import Finding, Kind, Severity
from turnwise.stability.health import HealthMetrics, Information, measure_envs, measure_health, mutual_information
from turnwise.stability.monitor import Monitor, MonitorSettings
from turnwise.stability.starpo_s import AlgorithmSettings, StarPOSSettings

__all__ = [
    "Action",
    "AlgorithmSettings",
    "Controller",
    "Decision",
    "FilterSettings",
    "Finding",
    "HealthMetrics",
    "Information",
    "Kind",
    "Mode",
    "Monitor",
    "MonitorSettings",
    "Selection",
    "Severity",
    "StabilitySettings",
    "StarPOSSettings",
    "measure_envs",
    "measure_health",
    "mutual_information",
    "select",
]
