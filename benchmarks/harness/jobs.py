"""A benchmark's jobs: what each is, where it lies, and whether it has been done.

Invariant: a job is done exactly when its folder holds a whole `result.json` that names the same work and settings, its
own and those of the job it begins from; so a benchmark that was stopped goes on, and one that was changed does not mix.
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

Figures: TypeAlias = Mapping[str, Json]
"""What a job returns: `{"evaluate": {"step": [0, 10], "evaluate/success": [0.31, 0.64]}}`."""

JOB, RESULT, LOG = "job.json", "result.json", "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work: `Job(name="learning/grpo/seed-0", work="benchmarks.harness.training:train", ...)`."""

    name: str
    """Unique in its benchmark; also its folder beneath the benchmark's."""
    work: str
    """`module:function`, called in another process as `function(settings, place)`; it returns `Figures`."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """All that the figures depend on, beside the code."""
    after: "Job | None" = None
    """The job whose folder this one begins from, such as a shared cold start."""

    def identity(self) -> dict[str, Json]:
        """What makes it this job and no other, in JSON's own types; its name is only where it lies."""
        after = None if self.after is None else {"name": self.after.name, **self.after.identity()}
        plain: dict[str, Json] = json.loads(
            json.dumps({"work": self.work, "settings": self.settings, "after": after}, allow_nan=False)
        )
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job works."""

    folder: Path
    """Its own: whatever it writes there is found again when it is taken up after an interruption."""
    before: Path | None
    """That of the job it comes after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: figures, or one line about what went wrong."""

    job: Job
    figures: Figures | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    """The machine and the versions that made the figures."""
    seconds: float = 0.0
    failure: str = ""
    kept: bool = False
    """Done before, and only read now."""


def order_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Every job once, and those they begin from before them, in the order they were given."""
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


def place_of(job: Job, root: Path) -> Place:
    """Where a job works, beneath the benchmark's folder."""
    return Place(folder=root / job.name, before=None if job.after is None else root / job.after.name)


def read_outcome(job: Job, root: Path) -> Outcome | None:
    """What the job came to when it was done before; None when it is still, or again, to be done."""
    file = root / job.name / RESULT
    if not file.is_file():
        return None
    result = read_json(file)
    if result.get("job") != job.identity():
        return None
    figures, about, seconds = result["figures"], result["about"], result["seconds"]
    assert isinstance(figures, dict)
    assert isinstance(about, dict)
    assert isinstance(seconds, int | float)
    return Outcome(job=job, figures=figures, about=about, seconds=float(seconds), kept=True)


def write_outcome(outcome: Outcome, root: Path) -> None:
    """Makes the job done."""
    result = {
        "job": outcome.job.identity(),
        "figures": outcome.figures,
        "about": outcome.about,
        "seconds": round(outcome.seconds, 3),
    }
    write_json(root / outcome.job.name / RESULT, result)


def make_room(job: Job, root: Path) -> None:
    """Prepares the folder of a job about to begin: kept where the same job was interrupted, else emptied."""
    folder = root / job.name
    begun = next((read_json(folder / name) for name in (JOB, RESULT) if (folder / name).is_file()), None)
    if begun is None and folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{folder}: holds files that are not a job's; move them, or choose another --out")
    if begun is not None and begun.get("job") != job.identity():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JOB, {"job": job.identity()})


def failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that have no figures."""
    return [outcome for outcome in outcomes if outcome.figures is None]
