"""Work for jobs, found by other processes by name: each leaves a trace, so that a test can count its calls."""

import math
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import torch

from benchmarks.harness.jobs import Job
from benchmarks.harness.progress import JobProgress
from turnwise.errors import EnvError
from turnwise.training.interruption import StopSignal


def job(name: str, work: str = "add", after: Job | None = None, **settings: float) -> Job:
    return Job(name=name, work=f"small_jobs:{work}", settings=settings, after=after)


def add(settings, folders):
    """The sum of its settings, and of what the job before it wrote."""
    _leave_trace(folders)
    before = 0.0 if folders.before is None else float((folders.before / "sum.txt").read_text())
    total = before + sum(settings.values())
    (folders.own / "sum.txt").write_text(str(total))
    return {"sum": total, "curve": [0.0, total]}


def break_down(settings, folders):
    _leave_trace(folders)
    raise KeyError("level 3")


def refuse(settings, folders):
    raise EnvError("no such lake:\n dig one")


def die(settings, folders):
    _leave_trace(folders)
    os.kill(os.getpid(), signal.SIGKILL)


def speak(settings, folders):
    """By Python's own streams and beneath them."""
    sys.stdout.write("said to stdout\n")
    sys.stderr.write("said to stderr\n")
    os.write(1, b"said below\n")
    return {}


def look_around(settings, folders):
    return {"threads": torch.get_num_threads(), "process": os.getpid(), "nan": math.nan}


def start_processes(settings, folders):
    """As a cold start does whose demonstrations are played by `sft.workers`."""
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        return {"absolute": processes.apply(abs, (-2,))}


def go_on(settings, folders):
    """Fails the first time, in the middle of its work."""
    half = folders.own / "half.txt"
    if half.exists():
        return {"found": half.read_text()}
    half.write_text("half done")
    raise RuntimeError("interrupted")


def save_when_stopped(settings, folders):
    """Works until it is asked to stop, as training does; the second time it has nothing left to do."""
    _leave_trace(folders)
    saved = folders.own / "saved.txt"
    if saved.exists():
        return {"found": saved.read_text()}
    with StopSignal() as stop:
        while stop.received is None:
            time.sleep(0.01)
        saved.write_text("step 3")
        stop.interrupt("after step 3, which is saved")


def take_long(settings, folders):
    """Saves nothing; the second time it is quick."""
    _leave_trace(folders)
    if calls(folders.own.parent, folders.own.name) == 1:
        time.sleep(600)
    return {"done": True}


def calls(root: Path, name: str) -> int:
    trace = root / name / "calls.txt"
    return len(trace.read_text().splitlines()) if trace.exists() else 0


def _leave_trace(folders) -> None:
    with (folders.own / "calls.txt").open("a") as file:
        file.write("called\n")


class RecordedProgress(JobProgress):
    """Records every call."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def begin(self, *, total: int, kept: int) -> None:
        self.events.append(("begin", str(total), str(kept)))

    def started(self, job: Job) -> None:
        self.events.append(("started", job.name))

    def finished(self, outcome) -> None:
        self.events.append(("finished", outcome.job.name))
