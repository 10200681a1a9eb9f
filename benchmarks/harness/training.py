"""A job that trains: the real trainer, in the job's own folder, and its metrics as columns.

Invariant: the job does what `turnwise train` with the same config would do; a job that was killed continues from its
last checkpoint, and one that was stopped from the step at which it was.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.jobs import Job, JobFolders, JobResult, is_begun
from turnwise.config import Config, check_config
from turnwise.errors import RunError
from turnwise.runs import Checkpoints, Record, RunDirectory, read_metrics
from turnwise.settings import parse_settings
from turnwise.training.trainer import run_training
from turnwise.types import Json

_RUN = "run"
_STAGES = ("sft", "train", "evaluate")


def training_job(name: str, config: Config, *, after: Job | None = None) -> Job:
    """A job that trains by this config; `after` another such job, it starts from that job's final model."""
    if after is not None:
        config = config.model_copy(update={"sft": None})
    settings = {"config": config.model_dump(mode="json")}
    return Job(name=name, work=f"{__name__}:train", settings=settings, after=after, resumes=True)


def train(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """Trains, and returns every metric as a column: `{"evaluate": {"step": [0, 5], "evaluate/success": [.3, .5]}}`.

    SIGTERM ends it with RunInterrupted, once the step under way is saved.
    """
    data = settings["config"]
    assert isinstance(data, Mapping)
    config = check_config(parse_settings(Config, data, source=folders.own.name))
    if folders.before is not None:
        config = _start_from(config, folders.before / _RUN)
    run = folders.own / _RUN
    directory = run_training(config, run, resume=(run / "config.yaml").is_file())
    return _read_stages(directory)


def read_unfinished(job: Job, root: Path) -> JobResult | None:
    """What a training job that is not done has measured so far, as `train` returns it; None where it was not begun."""
    directory = RunDirectory(root / job.name / _RUN)
    if job.work != f"{__name__}:train" or not is_begun(job, root) or not directory.metrics.is_file():
        return None
    return _read_stages(directory)


def read_column(result: JobResult, stage: str, name: str) -> list[float]:
    """One metric of a training job over its records of a stage; NaN where a record has none."""
    columns = result[stage]
    assert isinstance(columns, Mapping)
    column = columns.get(name)
    if not isinstance(column, list):
        raise RunError(f"a training job has no metric '{name}' in its stage '{stage}': there are {', '.join(columns)}")
    return [float(value) if isinstance(value, int | float) else math.nan for value in column]


def _read_stages(directory: RunDirectory) -> JobResult:
    records = read_metrics(directory.metrics)
    return {stage: _columns([record for record in records if record["stage"] == stage]) for stage in _STAGES}


def _start_from(config: Config, run: Path) -> Config:
    checkpoint = Checkpoints(run / "checkpoints").latest()
    if checkpoint is None:
        raise RunError(f"{run}: has no checkpoint to start from; delete its job's folder, so that it is run again")
    model = config.model.model_copy(update={"name": str(checkpoint / "model")})
    return config.model_copy(update={"model": model, "sft": None})


def _columns(records: Sequence[Record]) -> dict[str, Json]:
    names = dict.fromkeys(name for record in records for name in record if name not in ("stage", "time"))
    return {name: [record.get(name) for record in records] for name in names}
