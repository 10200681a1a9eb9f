"""`Tracker`: a callback that sends a run's config, metrics and findings to an experiment tracker.

Invariant: each record of `metrics.jsonl` and each finding is sent once. A resumed run goes on in the same run of the
tracker, skips the steps that it repeats, and first sends what the tracker missed. A new run whose tracker cannot start
ends at once with one line; a resumed run goes on without it.
"""

import importlib
import json
import logging
import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Self

from turnwise.errors import ConfigError
from turnwise.runs.findings import read_findings
from turnwise.runs.metrics import read_metrics
from turnwise.settings import leaves
from turnwise.training.callbacks import Callback

if TYPE_CHECKING:
    from turnwise.checks.diagnosis import Diagnosis
    from turnwise.config import Config
    from turnwise.runs.directory import RunDirectory
    from turnwise.stability.controller import Action
    from turnwise.stability.findings import Finding

logger = logging.getLogger(__name__)

_STAGES = ("untrained", "sft", "evaluate", "train")


@dataclass(slots=True)
class _Sent:
    """What a tracker has of a run, kept in the run's folder: `trackers/wandb.json`."""

    path: Path
    run_id: str | None = None
    """The tracker's own id of the run; None before it began."""
    last: dict[str, int] = field(default_factory=dict)
    """By stage, and for `findings`: the last step that was sent."""
    number: int = 0
    """Of records and findings that were sent."""

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(path, data["run_id"], dict(data["last"]), data["number"])
        except (OSError, ValueError, LookupError, TypeError):
            return cls(path)

    def write(self) -> None:
        """Atomic, but not synced: a power cut costs at most a doubled step, a sync at every step costs more."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        data = {"run_id": self.run_id, "last": self.last, "number": self.number}
        temporary.write_text(json.dumps(data), encoding="utf-8")
        os.replace(temporary, self.path)

    def add(self, stage: str, step: int) -> None:
        self.last[stage] = step
        self.number += 1
        self.write()


class Tracker(Callback):
    """Derive one by writing `start`, `log`, `log_finding` and `finish`; steps are those of the stage."""

    NAME: ClassVar[str]
    """As a recipe names it, and as the extra that installs it is called."""

    def __init__(self) -> None:
        self._missed = 0
        self._working = False

    @property
    def sent(self) -> int:
        """How many records and findings the tracker has of this run, over all its resumptions."""
        return self._sent.number

    @abstractmethod
    def start(self, run_id: str | None, config: Mapping[str, object], run: "RunDirectory") -> str:
        """Opens the tracker's run `run_id`, or a new one, and returns its id; `config` has dotted keys."""

    @abstractmethod
    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Sends metrics, all of them finite or NaN."""

    @abstractmethod
    def log_finding(self, step: int, kind: str, sentence: str, *, alarm: bool) -> None:
        """Sends a finding of the monitor, or an action of the controller."""

    @abstractmethod
    def finish(self, completed: bool) -> None:
        """Closes the tracker's run."""

    def on_run_begin(self, config: "Config", run: "RunDirectory") -> None:
        file = run.path / "trackers" / f"{self.NAME}.json"
        file.parent.mkdir(exist_ok=True)
        self._sent = _Sent.read(file)
        settings = {".".join(path): value for path, value in leaves(config.model_dump(mode="json"))}
        known = self._sent.run_id
        try:
            self._sent.run_id = self.start(known, settings, run)
            self._working = True
            self._sent.write()
            self._send_missed(run)
        except Exception as error:
            self._working = False
            if known is None:
                raise
            message = "%s cannot go on: %s: %s; training goes on without it, the next --resume sends what it missed"
            logger.warning(message, self.NAME, type(error).__name__, error)

    def on_sft_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._send("sft", step, metrics)

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._send("train", step, metrics)

    def on_evaluation(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._send(stage, step, metrics)

    def on_finding(self, step: int, finding: "Finding | Action | Diagnosis") -> None:
        self._send_finding(finding.to_json())

    def on_run_end(self, completed: bool) -> None:
        if self._missed:
            logger.warning("%s missed %d records; the next --resume sends them", self.NAME, self._missed)
        if self._working:
            self.finish(completed)

    def _send_missed(self, run: "RunDirectory") -> None:
        """Sends what the run recorded while the tracker was down or not yet named in the recipe."""
        self._skip = dict(self._sent.last)
        for record in read_metrics(run.metrics) if run.metrics.is_file() else ():
            metrics = {n: float(value) for n, value in record.items() if "/" in n and isinstance(value, int | float)}
            if record["stage"] in _STAGES:
                self._send(str(record["stage"]), int(record["step"] or 0), metrics)
        for finding in read_findings(run.path / "findings.jsonl"):
            self._send_finding(finding)
        self._skip = dict(self._sent.last)

    def _send(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        if not self._working:
            self._missed += 1
        elif step > self._skip.get(stage, -1):
            self.log(stage, step, {_name(stage, name): float(value) for name, value in metrics.items()})
            self._sent.add(stage, step)

    def _send_finding(self, finding: Mapping[str, object]) -> None:
        step = finding["step"]
        assert isinstance(step, int)
        if not self._working:
            self._missed += 1
        elif step > self._skip.get("findings", -1):
            kind = str(finding["kind"])
            # An action of the controller has no severity, and always matters.
            self.log_finding(step, kind, str(finding["sentence"]), alarm=finding.get("severity") != "sign")
            self._sent.add("findings", step)


def import_tracker(tracker: str, module: str) -> ModuleType:
    """The tracker's package, or one line that names the extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"callbacks: {tracker} needs the package {error.name}: pip install 'turnwise[{tracker}]'"
        raise ConfigError(message) from error


def _name(stage: str, name: str) -> str:
    """Names that are one's own in each stage: `untrained/success`, `sft/ledger/wall_seconds`, `evaluate/reward`."""
    if stage == "train" or name.startswith(f"{stage}/"):
        return name
    return f"{stage}/{name.removeprefix('evaluate/')}"
