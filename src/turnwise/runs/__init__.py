"""What a run writes and shows: its folder, metrics, checkpoints, trajectories, ledger, report and display."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.runs.checkpoints import (
        Checkpoints,
        RngState,
        capture_rng,
        load_state,
        restore_rng,
        save_state,
        seed_globals,
    )
    from turnwise.runs.directory import RunDirectory, collect_versions
    from turnwise.runs.display import COLUMNS, Column, Display, LiveDisplay, PlainDisplay, make_display
    from turnwise.runs.metrics import MetricsLog, Record, read_metrics
    from turnwise.runs.picture import (
        Panel,
        Series,
        colour_trajectory,
        draw_curve,
        draw_panels,
        sparkline,
        terminal_curve,
    )
    from turnwise.runs.store import SCHEMA, read_trajectories, write_trajectories

__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Checkpoints",
    "Column",
    "Display",
    "LiveDisplay",
    "MetricsLog",
    "Panel",
    "PlainDisplay",
    "Record",
    "RngState",
    "RunDirectory",
    "Series",
    "capture_rng",
    "collect_versions",
    "colour_trajectory",
    "draw_curve",
    "draw_panels",
    "load_state",
    "make_display",
    "read_metrics",
    "read_trajectories",
    "restore_rng",
    "save_state",
    "seed_globals",
    "sparkline",
    "terminal_curve",
    "write_trajectories",
]
__getattr__ = lazy_names(
    __name__,
    {
        "checkpoints": [
            "Checkpoints",
            "RngState",
            "capture_rng",
            "load_state",
            "restore_rng",
            "save_state",
            "seed_globals",
        ],
        "directory": ["RunDirectory", "collect_versions"],
        "display": ["COLUMNS", "Column", "Display", "LiveDisplay", "PlainDisplay", "make_display"],
        "metrics": ["MetricsLog", "Record", "read_metrics"],
        "picture": ["Panel", "Series", "colour_trajectory", "draw_curve", "draw_panels", "sparkline", "terminal_curve"],
        "store": ["SCHEMA", "read_trajectories", "write_trajectories"],
    },
)
