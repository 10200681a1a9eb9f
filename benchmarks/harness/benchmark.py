"""A benchmark: plans jobs, runs them and publishes their report.

Invariant: the project's own pages show only whole benchmarks: a run with a failed job leaves them unchanged, as
does a quick run, unless the benchmark sets `publishes_quick`. A benchmark that says `publishes_unfinished` has a page
that tells what is missing, and is made from all jobs that are done, whichever of them this command ran.
"""

import dataclasses
import importlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from benchmarks.harness import BENCHMARKS
from benchmarks.harness.jobs import Job, JobOutcome, JobResult, failures, order_jobs, read_outcome
from benchmarks.harness.pool import run_jobs
from benchmarks.harness.progress import make_progress
from benchmarks.harness.report import Publication, Report
from turnwise.errors import ConfigError, RunInterrupted
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
    overrides: tuple[str, ...] = ()
    """Settings that replace the recipe's: `steps=20`."""
    rows: tuple[str, ...] = ()
    """The rows of its table to run now; none: all."""
    changes: tuple[str, ...] = ()
    """For a benchmark whose rows are changes of a recipe: settings of one row each, `learner.optimizer.lr=1e-5`."""
    cold_changes: tuple[str, ...] = ()
    """Those that act on the cold start as well."""

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
    takes_rows: bool = False
    """Whether `--rows` may choose among its jobs."""
    takes_changes: bool = False
    """Whether `--change` and `--cold-change` make its rows."""
    serial: bool = False
    """Its jobs run one at a time, whatever `--jobs` says: they measure time, and would disturb each other."""

    def folder_name(self, scope: Scope) -> str:
        """The name of the folder that its jobs run in."""
        return f"{self.name}-quick" if scope.quick else self.name

    def default_processes(self, scope: Scope) -> int:
        """How many jobs run at once, unless `--jobs` sets it."""
        return 1 if self.serial else os.cpu_count() or 1

    def choose(self, scope: Scope, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs that `--rows` asks for, in the order to run them in; the jobs that they start from are added."""
        return jobs

    def publishes_unfinished(self, scope: Scope) -> bool:
        """Whether its page can say which results are missing."""
        return False

    def read_unfinished(self, job: Job, root: Path) -> JobResult | None:
        """What a job that is not done has to show already."""
        return None

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
    minutes: float | None = None,
    rows: Sequence[str] = (),
    overrides: Sequence[str] = (),
    changes: Sequence[str] = (),
    cold_changes: Sequence[str] = (),
    **named: str | None,
) -> int:
    """Runs what is not yet done, and publishes the results.

    `named` are the `USER_OPTIONS`. The exit code is 1 when a job failed, and that of an interrupted run when time ended
    before the work did.
    """
    count = _positive("--seeds", seeds, benchmark.quick_seeds if quick else benchmark.seeds)
    scope = Scope(
        quick=quick,
        seeds=count,
        rows=tuple(rows),
        overrides=tuple(overrides),
        changes=tuple(changes),
        cold_changes=tuple(cold_changes),
        **named,
    )
    _check_taken(benchmark, scope)
    if minutes is not None and minutes <= 0:
        raise ConfigError(f"--minutes: {minutes:g} would run nothing; give more than 0")
    processes = _positive("--jobs", processes, benchmark.default_processes(scope))
    processes = 1 if benchmark.serial else processes
    folder = Path(out) if out else Path("runs/bench") / benchmark.folder_name(scope)
    page = benchmark.publication(scope, Path()).read_page()
    jobs = order_jobs(benchmark.plan(scope))
    chosen = benchmark.choose(scope, jobs)
    with make_progress(console) as progress:
        outcomes = run_jobs(chosen, folder, processes=processes, progress=progress, minutes=minutes)
    done = _read_done(jobs, outcomes, folder)
    publishes = bool(done) if benchmark.publishes_unfinished(scope) else len(done) == len(jobs)
    code = _tell_ending(console, outcomes, folder, published=publishes)
    if publishes:
        report = benchmark.report(scope, _read_results(benchmark, jobs, done, folder))
        aside = quick and not benchmark.publishes_quick
        publication = benchmark.publication(scope, folder if aside else Path())
        publication.publish(_with_origin(report, benchmark, scope, done, total=len(jobs)), page=page)
        _print_line(console, f"The page is {publication.page}, the results are in {publication.results}.")
    elif not code:
        _print_line(console, f"{len(jobs) - len(done)} of {len(jobs)} jobs are still to do: nothing was published.")
    if minutes is not None and code == RunInterrupted.EXIT_CODE and not any(map(_ran_now, outcomes)):
        raise ConfigError(f"--minutes: no job was begun, since those like it took more than {minutes:g}: give more")
    return code


def _check_taken(benchmark: Benchmark, scope: Scope) -> None:
    refused = [f"--{name}" for name in scope.user_options() if name not in benchmark.takes]
    refused += ["--rows"] if scope.rows and not benchmark.takes_rows else []
    changes = {"--change": scope.changes, "--cold-change": scope.cold_changes}
    refused += [option for option, given in changes.items() if given and not benchmark.takes_changes]
    if scope.overrides and "recipe" not in benchmark.takes:
        raise ConfigError(f"unexpected argument '{scope.overrides[0]}': expected one benchmark")
    if refused:
        raise ConfigError(f"bench {benchmark.name}: takes no {' and no '.join(refused)}, since it brings its own")


def _read_done(jobs: Sequence[Job], outcomes: Sequence[JobOutcome], folder: Path) -> list[JobOutcome]:
    """All that is done of a benchmark, now or before, whether or not it was asked for this time."""
    now = {outcome.job.name: outcome for outcome in outcomes if outcome.result is not None}
    found = [now.get(job.name) or read_outcome(job, folder) for job in jobs]
    return [outcome for outcome in found if outcome is not None]


def _ran_now(outcome: JobOutcome) -> bool:
    """Whether the job was run by this command, to its end or in part."""
    return not outcome.kept and not (outcome.stopped and not outcome.seconds)


def _read_results(
    benchmark: Benchmark, jobs: Sequence[Job], done: Sequence[JobOutcome], folder: Path
) -> dict[str, JobResult]:
    """The results of what is done, and what the others have to show already."""
    results = {outcome.job.name: outcome.result for outcome in done if outcome.result is not None}
    left = [job for job in jobs if job.name not in results]
    return results | {job.name: found for job in left if (found := benchmark.read_unfinished(job, folder)) is not None}


def _tell_ending(console: Console, outcomes: Sequence[JobOutcome], folder: Path, *, published: bool) -> int:
    """Says what failed and what is left; the exit code is 1, that of an interrupted run, or 0."""
    left = [outcome for outcome in outcomes if outcome.stopped]
    if failed := failures(outcomes):
        names = ", ".join(outcome.job.name for outcome in failed)
        so = "" if published else ", so nothing was published"
        _print_line(console, f"{len(failed)} of {len(outcomes)} jobs failed{so}: {names}")
        _print_line(console, f"Their logs are in {folder}; the same command tries them again and keeps the rest.")
    if left:
        _print_line(console, f"{len(left)} of {len(outcomes)} jobs are left; the same command goes on with them.")
    return 1 if failed else RunInterrupted.EXIT_CODE if left else 0


def show_command(benchmark: Benchmark, scope: Scope) -> str:
    """The command that runs all of it, with no path of this machine: `turnwise bench credit --seeds 5`."""
    command = f"turnwise bench {benchmark.name}{' --quick' if scope.quick else ''}"
    for name, value in scope.user_options().items():
        command += f" --{name} {USER_OPTIONS[name] or _without_path(value)}"
    for option, words in (("--change", scope.changes), ("--cold-change", scope.cold_changes)):
        for word in words:
            shown = " ".join(_show_setting(setting) for setting in split_settings(word))
            command += f" {option} {shlex.quote(shown)}"
    settings = [shlex.quote(_show_setting(setting)) for setting in scope.overrides]
    return " ".join([command, f"--seeds {scope.seeds}", *settings])


def split_settings(word: str) -> list[str]:
    """Several settings in one word, at the blanks before a `key=`: a value may hold blanks itself."""
    return re.split(r"\s+(?=[\w.-]+=)", word.strip())


def _show_setting(setting: str) -> str:
    key, _, value = setting.partition("=")
    return f"{key}={_without_path(value)}"


def _without_path(value: str) -> str:
    return "FOLDER" if Path(value).is_absolute() else value


def _with_origin(
    report: Report, benchmark: Benchmark, scope: Scope, done: Sequence[JobOutcome], *, total: int
) -> Report:
    """The report with command, machine and versions, also as the page's part `origin`."""
    command = show_command(benchmark, scope)
    jobs = f"{len(done)}" if len(done) == total else f"{len(done)} of {total}"
    origin = {"command": command, "jobs": jobs}
    origin["process_minutes"] = f"{sum(outcome.seconds for outcome in done) / 60:.0f}"
    for name in ("machine", "versions"):
        origin[name] = "; ".join(sorted({outcome.about[name] for outcome in done}))
    sentence = f"From `{command}`: {jobs} jobs on {origin['machine']}, with {origin['versions']}."
    return dataclasses.replace(report, parts={**report.parts, "origin": sentence}, about=origin | dict(report.about))


def _positive(option: str, asked: int | None, default: int) -> int:
    if asked is not None and asked < 1:
        raise ConfigError(f"{option}: {asked} would run nothing; give 1 or more")
    return default if asked is None else asked


def _print_line(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
