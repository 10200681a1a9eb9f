"""One process that runs jobs, one at a time; its output goes to the job's log, and a job's exception stays within it.

Invariant: whatever a job does, its worker answers with a `JobOutcome`, and a result is on disk before it is reported.
SIGTERM stops a job that trains once its step is saved, and ends the process of any other.
"""

import contextlib
import dataclasses
import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias, cast

from benchmarks.harness.jobs import (
    LOG,
    Job,
    JobFolders,
    JobOutcome,
    JobResult,
    folders_of,
    note_piece,
    prepare_folder,
    read_outcome,
    write_outcome,
)
from benchmarks.harness.machine import describe_machine
from turnwise.errors import RunInterrupted, TurnwiseError
from turnwise.types import Json

Work: TypeAlias = Callable[[Mapping[str, Json], JobFolders], JobResult]

VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
"""Environment variables of a worker: one thread each, so that as many jobs as cores do not compete for them; and glibc
keeps the memory of large tensors instead of returning it after each use."""


def run_worker(pipe: Connection, root: Path) -> None:
    """Takes a job, answers with its outcome, and repeats until it receives None or its owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner is interrupted too, and decides
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while (job := pipe.recv()) is not None:
            outcome = run_job(job, root)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # other processes on the card may need it until the next job does
            pipe.send(outcome)


def run_job(job: Job, root: Path) -> JobOutcome:
    """Runs one job in this process."""
    began, before = time.monotonic(), 0.0
    try:
        before = prepare_folder(job, root)
        with _redirected(root / job.name / LOG):
            result = _call(job, folders_of(job, root))
        seconds = before + time.monotonic() - began
        write_outcome(JobOutcome(job=job, result=result, about=describe_machine(), seconds=seconds), root)
    except RunInterrupted:
        seconds = time.monotonic() - began
        note_piece(job, root, seconds=before + seconds)
        return JobOutcome(job=job, stopped=True, seconds=seconds)
    except TurnwiseError as error:
        return JobOutcome(job=job, failure=" ".join(str(error).split()), seconds=time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 (the boundary around a job: the others go on)
        message = " ".join(str(error).split())
        failure = f"{type(error).__name__}: {message}; see {root / job.name / LOG}"
        return JobOutcome(job=job, failure=failure, seconds=time.monotonic() - began)
    written = read_outcome(job, root)  # so that a result is the same now and when the benchmark continues later
    assert written is not None
    return dataclasses.replace(written, kept=False)


def _call(job: Job, folders: JobFolders) -> JobResult:
    try:
        return _find(job.work)(job.settings, folders)
    except RunInterrupted as stopped:
        sys.stderr.write(f"{stopped}\n")
        raise
    except Exception:
        traceback.print_exc()
        raise


def _find(work: str) -> Work:
    module, _, name = work.partition(":")
    return cast(Work, getattr(importlib.import_module(module), name))


@contextlib.contextmanager
def _redirected(log: Path) -> Iterator[None]:
    """Sends standard output and error, those of libraries in C too, to the end of a file."""
    streams = (sys.stdout, sys.stderr)
    with log.open("a", encoding="utf-8") as file:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for stream, number in zip(streams, (1, 2), strict=True):
                stream.flush()
                os.dup2(file.fileno(), number)
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield
        finally:
            file.flush()
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)
