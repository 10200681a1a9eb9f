"""Runs a benchmark's jobs in several processes; jobs that are done are not run again.

Invariant: a job that fails, even one that kills its process, costs itself and the jobs that start from it. When time is
over, nothing is begun any more and busy processes get SIGTERM: what a job has saved is kept, and none counts as failed.
"""

import contextlib
import math
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.harness.jobs import Job, JobOutcome, order_jobs, read_outcome
from benchmarks.harness.progress import JobProgress
from benchmarks.harness.worker import VARIABLES, run_worker

_WORTH_BEGINNING = 60.0
"""Seconds in which a job that resumes has something to save: it starts, and trains a few steps."""


def run_jobs(
    jobs: Iterable[Job], root: Path, *, processes: int, progress: JobProgress, minutes: float | None = None
) -> list[JobOutcome]:
    """Runs the jobs that are not done, within so many `minutes`, and returns every job's outcome, in their order."""
    clock = _Clock(minutes)
    ordered = order_jobs(jobs)
    outcomes = {job.name: done for job in ordered if (done := read_outcome(job, root)) is not None}
    waiting = [job for job in ordered if job.name not in outcomes]
    progress.begin(total=len(ordered), kept=len(outcomes))
    with _Workers(min(processes, len(waiting)), root) as workers:
        while waiting or workers.busy:
            if clock.left == 0:
                workers.ask_to_stop()
                waiting.clear()
            while blocked := _blocked(waiting, outcomes):  # each may block another in turn
                for job in blocked:
                    assert job.after is not None
                    waiting.remove(job)
                    stopped = outcomes[job.after.name].stopped
                    failure = "" if stopped else f"not run, since {job.after.name} failed"
                    outcomes[job.name] = JobOutcome(job=job, failure=failure, stopped=stopped)
                    progress.finished(outcomes[job.name])
            worth = [job for job in _ready(waiting, outcomes) if _needed(job, outcomes.values()) <= clock.left]
            for job in worth[: workers.idle]:
                waiting.remove(job)
                workers.submit(job)
                progress.started(job)
            if not workers.busy:
                break
            for outcome in workers.collect(clock.left) if workers.busy else ():
                outcomes[outcome.job.name] = outcome
                progress.finished(outcome)
    return [outcomes.get(job.name) or JobOutcome(job=job, stopped=True) for job in ordered]


class _Clock:
    """The seconds that are left."""

    def __init__(self, minutes: float | None) -> None:
        self._end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


def _needed(job: Job, outcomes: Iterable[JobOutcome]) -> float:
    """The seconds below which a job is begun in vain: the least that any of its kind took, or until it can save."""
    kind = [outcome.seconds for outcome in outcomes if outcome.result is not None and outcome.job.work == job.work]
    return min([*kind, *([_WORTH_BEGINNING] if job.resumes and kind else [])], default=0.0)


def _ready(waiting: Sequence[Job], outcomes: Mapping[str, JobOutcome]) -> list[Job]:
    return [job for job in waiting if job.after is None or job.after.name in outcomes]


def _blocked(waiting: Sequence[Job], outcomes: Mapping[str, JobOutcome]) -> list[Job]:
    """The jobs that cannot run, since the job they start from failed or was stopped."""
    return [job for job in _ready(waiting, outcomes) if job.after and outcomes[job.after.name].result is None]


class _Worker:
    """A process, the pipe to it, and the job it is running."""

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far_end = context.Pipe()
        # No daemon, since a job may start processes of its own: `stop` ends it, and so does the end of the pipe.
        self.process = context.Process(target=run_worker, args=(far_end, root))
        self.job: Job | None = None
        self._root, self._began, self._asked_to_stop = root, 0.0, False
        with _variables(VARIABLES):
            self.process.start()
        far_end.close()  # so that the end of the process is the end of the pipe

    def submit(self, job: Job) -> None:
        self.pipe.send(job)
        self.job, self._began = job, time.monotonic()

    def collect(self) -> JobOutcome:
        """The outcome of its job, which is a failure when the process is gone."""
        assert self.job is not None
        job, self.job = self.job, None
        try:
            outcome = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            if self._asked_to_stop:  # it may have been done all the same
                seconds = time.monotonic() - self._began
                return read_outcome(job, self._root) or JobOutcome(job=job, stopped=True, seconds=seconds)
            return JobOutcome(job=job, failure=f"its process ended with exit code {self.process.exitcode}")
        assert isinstance(outcome, JobOutcome)
        return outcome

    def ask_to_stop(self) -> None:
        """Once: a second SIGTERM would end a run that is about to save."""
        if self.job is not None and not self._asked_to_stop:
            self._asked_to_stop = True
            self.process.terminate()

    def stop(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self.process.terminate()
        self.process.join()


class _Workers:
    """At most `limit` processes, started when there is work for them."""

    def __init__(self, limit: int, root: Path) -> None:
        self._limit, self._root = limit, root
        self._workers: list[_Worker] = []

    @property
    def busy(self) -> int:
        return sum(worker.job is not None for worker in self._workers)

    @property
    def idle(self) -> int:
        return self._limit - self.busy

    def submit(self, job: Job) -> None:
        free = [worker for worker in self._workers if worker.job is None and worker.process.is_alive()]
        worker = next(iter(free), None)
        if worker is None:
            worker = _Worker(self._root)
            self._workers.append(worker)
        worker.submit(job)

    def ask_to_stop(self) -> None:
        for worker in self._workers:
            worker.ask_to_stop()

    def collect(self, seconds: float) -> Iterator[JobOutcome]:
        """Waits until a job ends, or for so long as there are any left; a worker whose process is gone is dropped."""
        by_pipe: dict[Connection, _Worker] = {worker.pipe: worker for worker in self._workers if worker.job}
        for pipe in wait(list(by_pipe), timeout=seconds if 0 < seconds < math.inf else None):
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            yield worker.collect()
            if not worker.process.is_alive():
                worker.stop()
                self._workers.remove(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """This process's environment with other values in it, for a child to inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
