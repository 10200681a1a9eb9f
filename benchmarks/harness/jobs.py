"""A benchmark's jobs: what each does, its folder, and whether it is done.

Invariant: a job is done exactly when its folder holds a whole `result.json` that names the same work and settings, its
own and those of the job it starts from; so a benchmark that was stopped continues, and a changed one starts over.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from turnwise.errors import RunError
from turnwise.runs.files import read_json, write_json
from turnwise.types import Json

JobResult: TypeAlias = Mapping[str, Json]
"""What a job returns: `{"evaluate": {"step": [0, 10], "evaluate/success": [0.31, 0.64]}}`."""

JOB, RESULT, LOG = "job.json", "result.json", "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work: `Job(name="learning/grpo/seed-0", work="benchmarks.harness.training:train", ...)`."""

    name: str
    """Unique in its benchmark; also its folder beneath the benchmark's."""
    work: str
    """`module:function`, called in another process as `function(settings, folders)`; it returns `JobResult`."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """All that the results depend on, beside the code."""
    after: "Job | None" = None
    """The job whose folder this one starts from, such as a shared cold start."""
    resumes: bool = False
    """It saves its work when it is stopped, and goes on from there."""

    def identity(self) -> dict[str, Json]:
        """All that decides its result, in JSON's own types; its name only says where it is stored."""
        after = None if self.after is None else {"name": self.after.name, **self.after.identity()}
        plain: dict[str, Json] = json.loads(
            json.dumps({"work": self.work, "settings": self.settings, "after": after}, allow_nan=False)
        )
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolders:
    """The folders that a job reads and writes."""

    own: Path
    """What it writes here is still there when it continues after an interruption."""
    before: Path | None
    """The folder of the job it starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """A job's result, or one line about its failure, or neither where time ended before it did."""

    job: Job
    result: JobResult | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    """The machine and the versions that produced the result."""
    seconds: float = 0.0
    """Of a result, in all the pieces that it took."""
    failure: str = ""
    stopped: bool = False
    """It was stopped in time, or not begun: the same command goes on with it."""
    kept: bool = False
    """Done before, and only read now."""


def order_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Every job once, after the job it starts from, in the order given."""
    ordered: dict[str, Job] = {}
    for job in jobs:
        chain = [job]
        while chain[-1].after is not None:
            chain.append(chain[-1].after)
        for one in reversed(chain):
            assert ordered.setdefault(one.name, one) == one, f"two different jobs are called {one.name}"
    for name in ordered:
        within = [other for other in ordered if other.startswith(f"{name}/")]
        assert not within, f"the folder of {within[0]} would lie within that of {name}"
    return list(ordered.values())


def folders_of(job: Job, root: Path) -> JobFolders:
    """A job's folders, beneath the benchmark's."""
    return JobFolders(own=root / job.name, before=None if job.after is None else root / job.after.name)


def read_outcome(job: Job, root: Path) -> JobOutcome | None:
    """The stored outcome of a job that is done; None when it has to run, or run again."""
    file = root / job.name / RESULT
    if not file.is_file():
        return None
    stored = read_json(file)
    if stored.get("job") != job.identity():
        return None
    result, about, seconds = stored["result"], stored["about"], stored["seconds"]
    assert isinstance(result, dict)
    assert isinstance(about, dict)
    assert isinstance(seconds, int | float)
    return JobOutcome(job=job, result=result, about=about, seconds=float(seconds), kept=True)


def write_outcome(outcome: JobOutcome, root: Path) -> None:
    """Stores the outcome, which marks the job as done."""
    stored = {
        "job": outcome.job.identity(),
        "result": outcome.result,
        "about": outcome.about,
        "seconds": round(outcome.seconds, 3),
    }
    write_json(root / outcome.job.name / RESULT, stored)


def prepare_folder(job: Job, root: Path) -> float:
    """Prepares the folder of a job about to start: kept where the same job was interrupted, else emptied.

    Returns the seconds of the pieces before, as `note_piece` has them.
    """
    folder = root / job.name
    begun = next((read_json(folder / name) for name in (JOB, RESULT) if (folder / name).is_file()), None)
    if begun is None and folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{folder}: holds files that are not a job's; move them, or choose another --out")
    if begun is not None and begun.get("job") != job.identity():
        shutil.rmtree(folder)
        begun = None
    folder.mkdir(parents=True, exist_ok=True)
    before = (begun or {}).get("seconds", 0.0)
    assert isinstance(before, int | float)
    note_piece(job, root, seconds=before)
    return before


def note_piece(job: Job, root: Path, *, seconds: float) -> None:
    """Stores that the job is begun, and the seconds of its pieces so far."""
    write_json(root / job.name / JOB, {"job": job.identity(), "seconds": round(seconds, 3)})


def is_begun(job: Job, root: Path) -> bool:
    """Whether the job's folder is this very job's, done or not."""
    file = root / job.name / JOB
    return file.is_file() and read_json(file).get("job") == job.identity()


def failures(outcomes: Sequence[JobOutcome]) -> list[JobOutcome]:
    """The jobs that ended without a result."""
    return [outcome for outcome in outcomes if outcome.result is None and not outcome.stopped]
