"""What a benchmark is, and how one is run: plan, jobs, report.

Invariant: the project's own pages show only whole benchmarks: one with a job that failed leaves them as they are, and
so does a quick look, unless the benchmark says that its quick run is fit to be shown.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from benchmarks.harness import BENCHMARKS
from benchmarks.harness.jobs import Figures, Job, Outcome, failures
from benchmarks.harness.pool import run_jobs
from benchmarks.harness.progress import make_progress
from benchmarks.harness.report import Publication, Report
from turnwise.errors import ConfigError
from turnwise.spelling import suggest

NAMED = {"device": None, "model": None, "data": "FOLDER", "peer": "PYTHON", "tokenizer": "FOLDER"}
"""Options by which a user names something, and what a published command shows in place of a path of theirs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much of a benchmark is asked for."""

    quick: bool
    """Minutes on two cores, to see it work; its figures are rough."""
    seeds: int
    model: str | None = None
    """The model that a user names, for a benchmark that takes one; likewise all that follow."""
    data: str | None = None
    """The folder that goes with it."""
    device: str | None = None
    """`cpu` or `cuda`."""
    peer: str | None = None
    """The python of a virtual environment in which others that are measured beside us are installed."""
    tokenizer: str | None = None
    """The folder of a tokenizer."""

    def named(self) -> dict[str, str]:
        """What a user named, by option: `{"model": "any/Any-1B", "data": "questions"}`."""
        values = {name: getattr(self, name) for name in NAMED}
        return {name: value for name, value in values.items() if value is not None}


Results: TypeAlias = Mapping[str, Figures]
"""What every job came to, by the job's name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark: its jobs, and what is to be said of them."""

    name: str
    seeds: int
    """How many, unless a user says otherwise."""
    quick_seeds: int
    plan: Callable[[Scope], Sequence[Job]]
    """All jobs; whatever a user can get wrong is found here, before any of them begins."""
    report: Callable[[Scope, Results], Report]
    page: str | None = None
    """The name of its page beneath `docs`, where that is not its own."""
    publishes_quick: bool = False
    """A quick run has seeds enough to be published too; whichever ran last is what the pages show."""
    takes: frozenset[str] = frozenset()
    """Which of the things that `NAMED` lists a user may name."""
    serial: bool = False
    """Its jobs run one at a time, however many are asked for: they measure time, and would be in each other's way."""

    def edition(self, scope: Scope) -> str:
        """What so much of it is called: the name of the folder of its jobs."""
        return f"{self.name}-quick" if scope.quick else self.name

    def publication(self, scope: Scope, root: Path) -> Publication:
        """Its files beneath the project's folder, or beneath that of a quick look."""
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
    model: str | None = None,
    data: str | None = None,
    device: str | None = None,
    peer: str | None = None,
    tokenizer: str | None = None,
) -> int:
    """Runs what is not yet done, and publishes the figures; 1 when a job failed and nothing was published."""
    count = _positive("--seeds", seeds, benchmark.quick_seeds if quick else benchmark.seeds)
    scope = Scope(quick=quick, seeds=count, model=model, data=data, device=device, peer=peer, tokenizer=tokenizer)
    if refused := [f"--{name}" for name in scope.named() if name not in benchmark.takes]:
        raise ConfigError(f"bench {benchmark.name}: takes no {' and no '.join(refused)}, since it brings its own")
    processes = _positive("--jobs", processes, os.cpu_count() or 1)
    processes = 1 if benchmark.serial else processes
    folder = Path(out) if out else Path("runs/bench") / benchmark.edition(scope)
    page = benchmark.publication(scope, Path()).read_page()
    jobs = benchmark.plan(scope)
    with make_progress(console) as progress:
        outcomes = run_jobs(jobs, folder, processes=processes, progress=progress)
    if failed := failures(outcomes):
        names = ", ".join(outcome.job.name for outcome in failed)
        _say(console, f"{len(failed)} of {len(outcomes)} jobs failed, so nothing was published: {names}")
        _say(console, f"Their logs are in {folder}; the same command tries them again and keeps the rest.")
        return 1
    results = {outcome.job.name: outcome.figures for outcome in outcomes if outcome.figures is not None}
    report = benchmark.report(scope, results)
    aside = quick and not benchmark.publishes_quick
    publication = benchmark.publication(scope, folder if aside else Path())
    publication.publish(_with_origin(report, benchmark, scope, outcomes), page=page)
    _say(console, f"The page is {publication.page}, the figures are in {publication.results}.")
    return 0


def _with_origin(report: Report, benchmark: Benchmark, scope: Scope, outcomes: Sequence[Outcome]) -> Report:
    """The report with what every benchmark says of where its figures come from, also as the page's part `origin`."""
    command = f"turnwise bench {benchmark.name}{' --quick' if scope.quick else ''}"
    for name, value in scope.named().items():
        command += f" --{name} {NAMED[name] or ('FOLDER' if Path(value).is_absolute() else value)}"
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


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
