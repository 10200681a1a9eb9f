"""TensorBoard: event files in the run's own folder, `tensorboard --logdir runs` shows them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.training.trackers.base import Tracker, import_tracker

if TYPE_CHECKING:
    from turnwise.runs.directory import RunDirectory


class TensorBoard(Tracker):
    """`callbacks: [tensorboard]`."""

    NAME = "tensorboard"

    def __init__(self, *, folder: str | None = None) -> None:
        """`folder` holds the event files; `tensorboard/` in the run's folder by default."""
        super().__init__()
        self._package = import_tracker(self.NAME, "torch.utils.tensorboard")
        self._folder = folder

    def start(self, run_id: str | None, config: Mapping[str, object], run: "RunDirectory") -> str:
        folder = Path(self._folder) if self._folder else run.path / "tensorboard"
        self._writer = self._package.SummaryWriter(str(folder))
        if run_id is None:
            self._writer.add_text("config", f"```yaml\n{run.config.read_text(encoding='utf-8')}\n```", 0)
        return self.NAME  # the folder is the run

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a killed run loses nothing

    def log_finding(self, step: int, kind: str, sentence: str, *, alarm: bool) -> None:
        self._writer.add_text(f"finding/{kind}", sentence, step)
        self._writer.flush()

    def finish(self, completed: bool) -> None:
        self._writer.close()
