"""All runs under a folder, a line each: how far each is, how good, and how old.

Invariant: a run that is half written or damaged is listed with what can be read of it, and the reason why not more.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.errors import TurnwiseError
from turnwise.runs.directory import RunDirectory
from turnwise.runs.metrics import Record, read_metrics
from turnwise.settings import load_yaml

_QUIET_SECONDS = 300.0
"""A run that recorded nothing for this long counts as stopped."""
_WITHIN_A_RUN = ("checkpoints", "trajectories", "trackers", "tensorboard", "wandb")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run in a listing."""

    path: Path
    status: str
    """`finished`, `training`, `stopped`, `new`, or `unreadable`."""
    step: int
    steps: int | None
    """Planned; None where the config cannot be read."""
    best: float | None
    """Highest held-out success, with the step it was measured at."""
    best_step: int | None
    last: float | None
    """Newest held-out success."""
    environment: str
    estimator: str
    age: float
    """Seconds since it last recorded something."""
    problem: str = ""


def find_runs(folder: Path) -> Iterator[Path]:
    """Every run in a folder or below, in order; what lies within a run is looked at, too, but not its files."""
    for place, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _WITHIN_A_RUN and not name.startswith("."))
        if "config.yaml" in files and ("metrics.jsonl" in files or "trajectories" in os.listdir(place)):
            yield Path(place)


def describe_run(path: Path, now: float | None = None) -> RunLine:
    """The line of one run."""
    run, problems = RunDirectory(path), list[str]()
    config: Mapping[str, object] = {}
    records: Sequence[Record] = ()
    try:
        loaded = load_yaml(run.config.read_text(encoding="utf-8"), source=str(run.config))
        config = loaded if isinstance(loaded, dict) else {}
    except (TurnwiseError, OSError, UnicodeDecodeError) as error:
        problems.append(str(error))
    try:
        records = read_metrics(run.metrics) if run.metrics.is_file() else ()
    except (TurnwiseError, OSError, UnicodeDecodeError) as error:
        problems.append(str(error))
    scores = [(_number(record, "evaluate/success"), record) for record in records if record["stage"] == "evaluate"]
    known = [(score, int(record["step"] or 0)) for score, record in scores if score is not None]
    best = max(known, key=lambda one: (one[0], -one[1]), default=(None, None))
    age = max(0.0, (time.time() if now is None else now) - _last_written(run))
    steps = config.get("steps")
    return RunLine(
        path=path,
        status="unreadable" if problems else _status(records, age),
        step=max((int(record["step"] or 0) for record in records if record["stage"] in ("train", "end")), default=0),
        steps=steps if isinstance(steps, int) else None,
        best=best[0],
        best_step=best[1],
        last=known[-1][0] if known else None,
        environment=_section(config, "env", "name"),
        estimator=_section(config, "credit", "estimator"),
        age=age,
        problem="; ".join(problems),
    )


def show_age(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `5 d`: since a run last recorded something."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _status(records: Sequence[Record], age: float) -> str:
    if any(record["stage"] == "end" for record in records):
        return "finished"
    if age < _QUIET_SECONDS:
        return "training"
    return "stopped" if records else "new"


def _last_written(run: RunDirectory) -> float:
    files = [file for file in (run.metrics, run.config) if file.exists()]
    return max((file.stat().st_mtime for file in files), default=0.0)


def _number(record: Record, name: str) -> float | None:
    value = record.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _section(config: Mapping[str, object], section: str, key: str) -> str:
    found = config.get(section)
    return str(found.get(key, "")) if isinstance(found, Mapping) else ""
