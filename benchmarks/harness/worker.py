"""One process that does jobs, one at a time: what it says goes into the job's own log, and what breaks stays within.

Invariant: whatever a job does, its worker answers with an `Outcome`, and a job with figures has its result on the disk
before anyone hears of it.
"""

import contextlib
import dataclasses
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

from benchmarks.harness.jobs import LOG, Figures, Job, Outcome, Place, make_room, place_of, read_outcome, write_outcome
from benchmarks.harness.machine import describe_machine
from turnwise.errors import TurnwiseError
from turnwise.types import Json

Work: TypeAlias = Callable[[Mapping[str, Json], Place], Figures]

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
"""What a worker is started with: one thread each, so that as many jobs as cores do not fight for them; and glibc keeps
the memory of large tensors instead of returning it after each use."""


def serve(orders: Connection, root: Path) -> None:
    """A worker's life: takes a job, answers with its outcome, until it is told None or its owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner is interrupted too, and decides
    import torch

    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while (job := orders.recv()) is not None:
            orders.send(perform(job, root))


def perform(job: Job, root: Path) -> Outcome:
    """Does one job here and now."""
    began = time.monotonic()
    try:
        make_room(job, root)
        with _redirected(root / job.name / LOG):
            figures = _call(job, place_of(job, root))
        seconds = time.monotonic() - began
        write_outcome(Outcome(job=job, figures=figures, about=describe_machine(), seconds=seconds), root)
    except TurnwiseError as error:
        return Outcome(job=job, failure=" ".join(str(error).split()), seconds=time.monotonic() - began)
    except Exception as error:  # noqa: BLE001 (the boundary around a job: the others go on)
        said = " ".join(str(error).split())
        failure = f"{type(error).__name__}: {said}; see {root / job.name / LOG}"
        return Outcome(job=job, failure=failure, seconds=time.monotonic() - began)
    written = read_outcome(job, root)  # so that figures are the same now and when the benchmark is taken up again
    assert written is not None
    return dataclasses.replace(written, kept=False)


def _call(job: Job, place: Place) -> Figures:
    try:
        return _find(job.work)(job.settings, place)
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
