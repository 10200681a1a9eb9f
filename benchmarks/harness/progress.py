"""Progress of the jobs: a bar with the running ones on a terminal, a line per job elsewhere."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.harness.jobs import Job, JobOutcome


class JobProgress(ABC):
    """Follows every job; use it as a context manager, so that the terminal is restored."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0

    def begin(self, *, total: int, kept: int) -> None:
        """There are `total` jobs, of which `kept` were done before."""
        self._total, self._done = total, kept
        if kept:
            self._print_line(f"{kept} of {total} jobs were done before and are kept")

    @abstractmethod
    def started(self, job: Job) -> None:
        """A job starts."""

    def finished(self, outcome: JobOutcome) -> None:
        """A job ended, with a result or a failure, or was stopped."""
        self._done += not outcome.stopped

    def close(self) -> None:
        """Restores the terminal."""
        return

    def _print_line(self, line: str, style: str = "") -> None:
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JobLines(JobProgress):
    """`learning/grpo/seed-3  started`, and later `12/60  learning/grpo/seed-3  done in 64 s`."""

    def started(self, job: Job) -> None:
        self._print_line(f"{job.name}  started")

    def finished(self, outcome: JobOutcome) -> None:
        super().finished(outcome)
        ending = f"failed: {outcome.failure}" if outcome.failure else f"done in {outcome.seconds:.0f} s"
        ending = f"stopped after {outcome.seconds:.0f} s" if outcome.stopped else ending
        self._print_line(f"{self._done}/{self._total}  {outcome.job.name}  {ending}")


class JobBar(JobProgress):
    """One bar for all jobs, with the time left and the names of the running ones; failures stay on the screen."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._names: list[str] = []
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.description}"),
            console=console,
        )

    def begin(self, *, total: int, kept: int) -> None:
        super().begin(total=total, kept=kept)
        # Kept jobs took no time in this run, so the pace is that of the others.
        self._task = self._bar.add_task("", total=total - kept)
        self._bar.start()

    def started(self, job: Job) -> None:
        self._names.append(job.name)
        self._describe()

    def finished(self, outcome: JobOutcome) -> None:
        super().finished(outcome)
        if outcome.job.name in self._names:  # a blocked job never started
            self._names.remove(outcome.job.name)
        if outcome.failure:
            self._print_line(f"{outcome.job.name} failed: {outcome.failure}", style="red")
        self._bar.advance(self._task, 0 if outcome.stopped else 1)
        self._describe()

    def close(self) -> None:
        self._bar.stop()

    def _describe(self) -> None:
        shown = ", ".join(self._names[:3]) + (f" and {len(self._names) - 3} more" if len(self._names) > 3 else "")
        self._bar.update(self._task, description=escape(shown))


def make_progress(console: Console) -> JobProgress:
    """The bar where it can be drawn, lines elsewhere."""
    live = console.is_terminal and not console.is_dumb_terminal and not console.no_color
    return JobBar(console) if live else JobLines(console)
