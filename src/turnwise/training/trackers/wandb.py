"""Weights & Biases: online, or offline into the run's own folder (`mode: offline`, later `wandb sync`).

Training steps are the axis `step`, those of the cold start `sft/step`; alarms and actions are alerts, too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from turnwise.training.trackers.base import Tracker, import_tracker

if TYPE_CHECKING:
    from turnwise.runs.directory import RunDirectory

_START_SECONDS = 300.0


class WandB(Tracker):
    """`callbacks: [{name: wandb, args: {project: agents}}]`."""

    NAME = "wandb"

    def __init__(
        self,
        *,
        project: str = "turnwise",
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: tuple[str, ...] = (),
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        """The arguments of `wandb.init`; `name` is that of the run's folder by default."""
        super().__init__()
        self._package = import_tracker(self.NAME, "wandb")
        self._given = {"project": project, "entity": entity, "group": group, "tags": list(tags), "mode": mode}
        self._name = name

    def start(self, run_id: str | None, config: Mapping[str, object], run: "RunDirectory") -> str:
        self._run = self._package.init(
            **self._given,
            name=self._name or run.path.resolve().name,
            id=run_id,
            resume="allow",
            config=dict(config),
            dir=str(run.path),
            # Its capture of the terminal would store every frame of the live display.
            settings=self._package.Settings(console="off", quiet=True, **self._waits()),
        )
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric("sft/*", step_metric="sft/step")
        return str(self._run.id)

    def _waits(self) -> dict[str, float]:
        """Its own process may take long to start where all cores are busy; by default it is given up after seconds."""
        known = self._package.Settings.model_fields  # `x_` marks settings that may go
        return {name: _START_SECONDS for name in ("init_timeout", "x_service_wait") if name in known}

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._log({**metrics, "sft/step" if stage == "sft" else "step": step})

    def log_finding(self, step: int, kind: str, sentence: str, *, alarm: bool) -> None:
        self._log({f"finding/{kind}": 1, "step": step})
        if alarm:
            self._run.alert(title=kind.replace("_", " "), text=f"step {step}: {sentence}", wait_duration=0)

    def finish(self, completed: bool) -> None:
        self._run.finish(exit_code=0 if completed else 1)

    def _log(self, row: dict[str, float]) -> None:
        # Numbered by us: an offline run that is resumed would number its rows from 0 again.
        self._run.log(row, step=self.sent)
