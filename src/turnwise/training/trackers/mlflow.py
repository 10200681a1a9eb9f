"""MLflow: a run in an experiment of the tracking server, or of the local store where there is none."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from turnwise.training.trackers.base import Tracker, import_tracker

if TYPE_CHECKING:
    from turnwise.runs.directory import RunDirectory

_MAX_METRICS, _MAX_PARAMS, _MAX_CHARS = 1000, 100, 6000
"""What one request to an MLflow server may hold."""
_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")
T = TypeVar("T")


class MLflow(Tracker):
    """`callbacks: [{name: mlflow, args: {experiment: agents}}]`."""

    NAME = "mlflow"

    def __init__(self, *, experiment: str = "turnwise", name: str | None = None, uri: str | None = None) -> None:
        """`uri` is the tracking server or store; MLFLOW_TRACKING_URI, or MLflow's local store, by default."""
        super().__init__()
        self._package = import_tracker(self.NAME, "mlflow")
        self._experiment, self._name, self._uri = experiment, name, uri

    def start(self, run_id: str | None, config: Mapping[str, object], run: "RunDirectory") -> str:
        self._client = self._package.MlflowClient(tracking_uri=self._uri)
        self._entities = self._package.entities
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self._run_id = run_id
            return run_id
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        name = self._name or run.path.resolve().name
        self._run_id = str(self._client.create_run(experiment, run_name=name).info.run_id)
        params = [
            self._entities.Param(_spell(key), "" if value is None else str(value)[:_MAX_CHARS])
            for key, value in config.items()
        ]
        for part in _split(params, _MAX_PARAMS):
            self._client.log_batch(self._run_id, params=part)
        return self._run_id

    def log(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        points = [self._entities.Metric(_spell(name), value, now, step) for name, value in metrics.items()]
        for part in _split(points, _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=part)

    def log_finding(self, step: int, kind: str, sentence: str, *, alarm: bool) -> None:
        self.log("train", step, {f"finding/{kind}": 1.0})
        self._client.set_tag(self._run_id, f"finding.{step}.{kind}", sentence)

    def finish(self, completed: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if completed else "FAILED")


def _spell(name: str) -> str:
    """A name as MLflow allows it: `evaluate/hops=2/success` is `evaluate/hops_2/success`."""
    return _NOT_IN_A_NAME.sub("_", name)


def _split(items: Sequence[T], most: int) -> Iterator[list[T]]:
    return (list(items[place : place + most]) for place in range(0, len(items), most))
