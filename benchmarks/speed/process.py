"""One measurement, in a process of its own: how it is started, and the one line of JSON that it answers with.

Invariant: every side of a comparison is started with the same environment, and none while another runs; so threads,
allocator and leftovers of an earlier measurement favour neither side.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TypeAlias, cast

from benchmarks.harness import worker
from benchmarks.harness.jobs import JobFolders, JobResult
from turnwise.errors import RunError
from turnwise.types import Json

Measurement: TypeAlias = Callable[[Mapping[str, Json]], JobResult]
Variables: TypeAlias = Mapping[str, str | None]
"""Environment variables; None is one that is not set."""

THREADS = 2
VARIABLES = {
    "OMP_NUM_THREADS": str(THREADS),
    "MKL_NUM_THREADS": str(THREADS),
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**35),
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of every side alike. Without the allocator's settings, page faults of large tensors take half of a peer's step."""


def find_own_variables() -> dict[str, str | None]:
    """What this process was given of the variables that a benchmark sets for its workers and its sides."""
    return {name: os.environ.get(name) for name in {**worker.VARIABLES, **VARIABLES}}


def measure_ours(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of a side of ours: `{"measurement": "benchmarks.speed.steps:measure_steps", "settings": {...}}`."""
    command = [sys.executable, "-m", __name__, str(settings["measurement"]), json.dumps(settings["settings"])]
    checkout = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))
    return run_side(command, folders.own, {"PYTHONPATH": paths})


def measure_peer(settings: Mapping[str, Json], folders: JobFolders, extra: Mapping[str, str | None] = {}) -> JobResult:
    """The job of a peer's side: `{"python": "...", "script": "benchmarks/peers/trl_workload.py", "options": {...}}`."""
    options = settings["options"]
    assert isinstance(options, Mapping)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return run_side([str(settings["python"]), str(settings["script"]), *words], folders.own, extra)


def run_side(command: Sequence[str], folder: Path, extra: Mapping[str, str | None] = {}) -> JobResult:
    """Runs a command to its end and reads the last line that it printed."""
    printed = run_command(command, folder, {**VARIABLES, **extra})
    try:
        result = json.loads(last_line(printed))
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise RunError(f"{_name(command)} printed no line of JSON at its end; see {folder / 'stdout.txt'}")
    return result


def run_command(command: Sequence[str], folder: Path, variables: Variables) -> str:
    """Runs a command to its end and returns what it printed; that can be followed in the folder, where it is kept."""
    output, errors = folder / "stdout.txt", folder / "stderr.txt"
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    with output.open("w") as stdout, errors.open("w") as stderr, _killed_with_us():
        try:
            done = subprocess.run(command, env=environment, stdout=stdout, stderr=stderr)
        except OSError as error:
            raise RunError(f"{command[0]} cannot be run: {error.strerror}; give --peer the path of a python") from None
    if done.returncode:
        why = last_line(errors.read_text(encoding="utf-8", errors="replace")) or "it printed nothing"
        raise RunError(f"{_name(command)} ended with exit code {done.returncode}: {why}")
    return output.read_text(encoding="utf-8", errors="replace")


def _name(command: Sequence[str]) -> str:
    """Of the script, the measurement, or the command of turnwise's: `python -m turnwise train` is `train`."""
    return Path(command[1] if command[1] != "-m" else command[3]).name


def last_line(text: str) -> str:
    """The last line that holds anything."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@contextlib.contextmanager
def _killed_with_us() -> Iterator[None]:
    """Makes SIGTERM, by which a benchmark that is stopped ends its workers, an exception: what we started ends too."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str]) -> None:
    """The process of a side of ours: takes its measurement and prints the result."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    measurement, settings = arguments
    module, _, name = measurement.partition(":")
    measure = cast(Measurement, getattr(importlib.import_module(module), name))
    sys.stdout.write(f"{json.dumps(measure(json.loads(settings)))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
