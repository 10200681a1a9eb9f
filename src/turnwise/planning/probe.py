"""A few steps of a recipe on this machine, to calibrate a plan by."""

import tempfile
from pathlib import Path

from rich.console import Console

from turnwise.config import Config
from turnwise.errors import ConfigError
from turnwise.planning.measured import MeasuredRun, measure_run, read_table, run_settings
from turnwise.planning.shape import find_shape

_WARM_UP = 2
_FEWEST = 3


def probe(config: Config, *, steps: int) -> MeasuredRun:
    """Trains from the recipe's own weights, without SFT and evaluations, and throws the run away."""
    from turnwise.runs.display import PlainDisplay
    from turnwise.training.trainer import run_training

    if steps < _FEWEST:
        raise ConfigError(f"--probe: {steps} steps are too few: {_FEWEST} or more")
    shape = find_shape(config.model, {run.model: run.shape for run in read_table()})
    updates = config.rollout.updates_per_rollout
    count = -(-(steps + _WARM_UP) // updates) * updates
    short = config.model_copy(
        update={
            "steps": count,
            "sft": None,
            "evaluate": config.evaluate.model_copy(update={"tasks": 1, "every": 0, "untrained": False}),
            "checkpoint": config.checkpoint.model_copy(update={"every": count}),
            "callbacks": (),
        }
    )
    with tempfile.TemporaryDirectory(prefix="turnwise-probe-") as folder:
        run_training(short, Path(folder) / "run", display=PlainDisplay(Console(quiet=True)))
        measured = measure_run(Path(folder) / "run", run_settings(config, shape), device="this machine")
    return measured
