"""Steady training: which groups are learnt from, what a collapse looks like, and what is done about it."""

from turnwise.stability.controller import Act, Controller, Mode, StabilitySettings, Verdict
from turnwise.stability.filters import FilterSettings, Selection, select
from turnwise.stability.findings import Finding, Kind, Severity
from turnwise.stability.health import Information, Vitals, measure, mutual_information
from turnwise.stability.monitor import Monitor, MonitorSettings
from turnwise.stability.starpo_s import Regime, RemedySettings

__all__ = [
    "Act",
    "Controller",
    "FilterSettings",
    "Finding",
    "Information",
    "Kind",
    "Mode",
    "Monitor",
    "MonitorSettings",
    "Regime",
    "RemedySettings",
    "Selection",
    "Severity",
    "StabilitySettings",
    "Verdict",
    "Vitals",
    "measure",
    "mutual_information",
    "select",
]
