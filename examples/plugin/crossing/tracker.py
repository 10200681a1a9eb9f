"""A tracker: some metrics of every step, as a table in the run's folder."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise import Config
from turnwise.runs.directory import RunDirectory
from turnwise.training.callbacks import Callback


class CsvTracker(Callback):
    """Writes `curve.csv`: one line a step, one column a metric."""

    def __init__(self, *, metrics: Sequence[str] = ("reward/total",)) -> None:
        self._metrics = tuple(metrics)
        self._file: Path | None = None

    def on_run_begin(self, config: Config, run: RunDirectory) -> None:
        self._file = run.path / "curve.csv"
        if not self._file.exists():
            self._write("step", *self._metrics)

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write(step, *(metrics[name] for name in self._metrics))

    def _write(self, *row: object) -> None:
        assert self._file is not None
        with self._file.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(row)
