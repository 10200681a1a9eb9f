"""A benchmark: plans jobs, runs them and publishes their report.

Invariant: the project's own pages show only whole benchmarks: a run with a failed job leaves them unchanged, as
does a quick run, unless the benchmark sets `publishes_quick`.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from benchmarks.harness import BENCHMARKS
from benchmarks.harness.jobs import Job, JobOutcome, JobResult, failures
from benchmarks.harness.pool import run_jobs
from benchmarks.harness.progress import make_progress
from benchmarks.harness.report import Publication, Report
from turnwise.errors import ConfigError
from turnwise.spelling import suggest

USER_OPTIONS = {
    "recipe": None,
    "device": None,
    "model": None,
    "data": "FOLDER",
    "peer": "PYTHON",
    "tokenizer": "FOLDER",
}
"""Options that name something of the user's, and what a published command shows in place of a path."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much of a benchmark to run, and on what."""

    quick: bool
    """Minutes on two cores, with fewer seeds."""
    seeds: int
    recipe: str | None = None
    """The recipe to run, for a benchmark that takes one; likewise the options below."""
    model: str | None = None
    """The model to use."""
    data: str | None = None
    """The folder of its questions and corpus."""
    device: str | None = None
    """`cpu` or `cuda`."""
    peer: str | None = None
    """The python of a virtual environment that has the libraries we compare with."""
    tokenizer: str | None = None
    """The folder of a tokenizer."""

    def user_options(self) -> dict[str, str]:
        """The options that were given: `{"model": "any/Any-1B", "data": "questions"}`."""
        values = {name: getattr(self, name) for name in USER_OPTIONS}
        return {name: value for name, value in values.items() if value is not None}


JobResults: TypeAlias = Mapping[str, JobResult]
"""The result of every job, by the job's name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark: its jobs and its report."""

    name: str
    seeds: int
    """The number of seeds, unless `--seeds` sets it."""
    quick_seeds: int
    plan: Callable[[Scope], Sequence[Job]]
    """All jobs; a user's mistake is found here, before any of them starts."""
    report: Callable[[Scope, JobResults], Report]
    page: str | None = None
    """The name of its page beneath `docs`, where that is not its own."""
    publishes_quick: bool = False
    """A quick run has enough seeds to be published too; the pages show the latest run."""
    takes: frozenset[str] = frozenset()
    """Which of `USER_OPTIONS` it takes."""
    serial: bool = False
    """Its jobs run one at a time, whatever `--jobs` says: they measure time, and would disturb each other."""

    def folder_name(self, scope: Scope) -> str:
        """The name of the folder that its jobs run in."""
        return f"{self.name}-quick" if scope.quick else self.name

    def publication(self, scope: Scope, root: Path) -> Publication:
        """Its files beneath the project's folder, or beneath that of a quick run."""
        return _Publication(name=self.name, root=root, page_name=self.page or self.name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Publication(Publication):
    """One whose page may be about more than the benchmark that fills it."""

    page_name: str

    @property
    def page(self) -> Path:
        return self.root / "docs" / f"{self.page_name}.md"


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of this name: `find_benchmark("credit")`."""
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise ConfigError(f"bench: there is no '{name}'{suggest(name, BENCHMARKS)}; the benchmarks are: {known}")
    benchmark = importlib.import_module(BENCHMARKS[name]).BENCHMARK
    assert isinstance(benchmark, Benchmark)
    return benchmark


def run_benchmark(
    benchmark: Benchmark,
    console: Console,
    *,
    quick: bool = False,
    seeds: int | None = None,
    processes: int | None = None,
    out: str | Path | None = None,
    recipe: str | None = None,
    model: str | None = None,
    data: str | None = None,
    device: str | None = None,
    peer: str | None = None,
    tokenizer: str | None = None,
) -> int:
    """Runs what is not yet done, and publishes the results; 1 when a job failed and nothing was published."""
    count = _positive("--seeds", seeds, benchmark.quick_seeds if quick else benchmark.seeds)
    options = {"recipe": recipe, "model": model, "data": data, "device": device, "peer": peer, "tokenizer": tokenizer}
    scope = Scope(quick=quick, seeds=count, **options)
    if refused := [f"--{name}" for name in scope.user_options() if name not in benchmark.takes]:
        raise ConfigError(f"bench {benchmark.name}: takes no {' and no '.join(refused)}, since it brings its own")
    processes = _positive("--jobs", processes, os.cpu_count() or 1)
    processes = 1 if benchmark.serial else processes
    folder = Path(out) if out else Path("runs/bench") / benchmark.folder_name(scope)
    page = benchmark.publication(scope, Path()).read_page()
    jobs = benchmark.plan(scope)
    with make_progress(console) as progress:
        outcomes = run_jobs(jobs, folder, processes=processes, progress=progress)
    if failed := failures(outcomes):
        names = ", ".join(outcome.job.name for outcome in failed)
        _print_line(console, f"{len(failed)} of {len(outcomes)} jobs failed, so nothing was published: {names}")
        _print_line(console, f"Their logs are in {folder}; the same command tries them again and keeps the rest.")
        return 1
    results = {outcome.job.name: outcome.result for outcome in outcomes if outcome.result is not None}
    report = benchmark.report(scope, results)
    aside = quick and not benchmark.publishes_quick
    publication = benchmark.publication(scope, folder if aside else Path())
    publication.publish(_with_origin(report, benchmark, scope, outcomes), page=page)
    _print_line(console, f"The page is {publication.page}, the results are in {publication.results}.")
    return 0


def _with_origin(report: Report, benchmark: Benchmark, scope: Scope, outcomes: Sequence[JobOutcome]) -> Report:
    """The report with command, machine and versions, also as the page's part `origin`."""
    command = f"turnwise bench {benchmark.name}{' --quick' if scope.quick else ''}"
    for name, value in scope.user_options().items():
        command += f" --{name} {USER_OPTIONS[name] or ('FOLDER' if Path(value).is_absolute() else value)}"
    command += f" --seeds {scope.seeds}"
    origin = {"command": command, "jobs": str(len(outcomes))}
    origin["process_minutes"] = f"{sum(outcome.seconds for outcome in outcomes) / 60:.0f}"
    for name in ("machine", "versions"):
        origin[name] = "; ".join(sorted({outcome.about[name] for outcome in outcomes}))
    sentence = f"From `{command}`: {len(outcomes)} jobs on {origin['machine']}, with {origin['versions']}."
    return dataclasses.replace(report, parts={**report.parts, "origin": sentence}, about=origin | dict(report.about))


def _positive(option: str, asked: int | None, default: int) -> int:
    if asked is not None and asked < 1:
        raise ConfigError(f"{option}: {asked} would run nothing; give 1 or more")
    return default if asked is None else asked


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
