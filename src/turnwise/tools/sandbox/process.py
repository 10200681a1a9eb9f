"""`Sandbox`: a piece of Python code in, how it ended and what it printed out, each in a process of its own.

What holds the code, strongest first (`Sandbox.protections` says which are in force on this machine):

    namespaces    no network; the code sees no process but its own, and all of them end with it
    mounts        the tree of files is read-only; the working directory is in memory and limited in all
    landlock      nothing but the working directory and Python's own library can be read
    seccomp       no sockets, no other processes, no hand on the trainer, no memory that goes uncounted
    memory_limit  the process's memory; macOS has no such thing
    audit_hook    the same rules inside Python, with words; alone, it stops accidents and no attacker

Wall and CPU time, output, the size of files and the number of open ones are limited everywhere. Namespaces and mounts
need a system that gives them to users, which many containers do not; Landlock needs Linux 5.13, seccomp x86_64 or
aarch64. Without Landlock and seccomp this is no boundary against a determined attacker, and with all in force the code
still shares the machine's kernel.

Invariant: `run` answers within the time limit and a few seconds, whatever the code does, and nothing of it is left.
"""

import asyncio
import contextlib
import functools
import logging
import marshal
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import Field

from turnwise.errors import ToolError
from turnwise.settings import Settings

_logger = logging.getLogger(__name__)

_START_SECONDS = 30.0
"""Until a process has started on a busy machine, which is not the code's own time."""
_END_SECONDS = 3.0
_HEADER_BYTES = 1024

# The package itself takes long to import, so the sandbox gets hollow ones, in which its few modules are found.
_START = """
import sys
for name, folder in zip(("turnwise", "turnwise.tools", "turnwise.tools.sandbox"), sys.argv[1:], strict=True):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [folder]
from turnwise.tools.sandbox.guard import main
main()
"""
_HERE = Path(__file__).parent
# Isolated mode but for the environment, which is ours and has a set come in the same order every time.
_COMMAND = (sys.executable, "-s", "-P", "-S", "-c", _START, str(_HERE.parents[1]), str(_HERE.parent), str(_HERE))
_TRIAL = "import hashlib, json, threading; open('trial', 'w').write('written')"


class PythonSettings(Settings):
    """What code in the sandbox may use."""

    seconds: float = Field(default=5.0, gt=0, le=3600)
    """Wall time, and CPU time over all threads, until the code is stopped."""
    memory_mb: int = Field(default=256, ge=8)
    """Memory beyond what Python itself takes."""
    disk_mb: int = Field(default=16, ge=1)
    """What may be written to the working directory in all; to each file where `mounts` is not in force."""
    output_kb: int = Field(default=64, ge=1)
    """Printing more than this stops the code."""
    readable: tuple[str, ...] = ()
    """Files and folders that the code may read beside its working directory and Python's own library."""
    at_once: int | None = Field(default=None, ge=1)
    """Calls that run side by side, the others waiting; by default one for each CPU."""
    isolation: Literal["best", "kernel"] = "best"
    """`kernel` refuses to start where the network, files, processes or memory are not guarded by the kernel."""


class Protection(StrEnum):
    """What can hold code in the sandbox; the module's docstring says what each does."""

    NAMESPACES = "namespaces"
    MOUNTS = "mounts"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    MEMORY_LIMIT = "memory_limit"
    AUDIT_HOOK = "audit_hook"


class Ending(StrEnum):
    """How a piece of code ended."""

    DONE = "done"
    RAISED = "raised"
    """By an exception of its own, whose traceback was printed."""
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    CRASHED = "crashed"
    """By a signal or an exit status of its own making."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a piece of code: `Outcome(ending=Ending.DONE, output="42\\n")`."""

    ending: Ending
    output: str
    """What was printed, the value of a last expression and a traceback included."""
    number: int = 0
    """Of a crash: the exit status, or minus the signal."""


class Sandbox:
    """`await Sandbox(PythonSettings(seconds=2)).run("6 * 7")`; nothing is kept from one run to the next."""

    def __init__(self, settings: PythonSettings, *, protections: Collection[Protection] = tuple(Protection)) -> None:
        """Finds out, with a trial run, which of the protections can be had."""
        for path in settings.readable:
            if not os.path.exists(path):
                raise ToolError(f"readable: there is no file or folder {path}; correct it or leave it out")
        self.settings = settings
        self.protections = _find_protections(frozenset(protections))
        """Those in force, the same for every run."""
        self.endings: Counter[Ending] = Counter()
        """How often each ending was met."""
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        if self.gaps and settings.isolation == "kernel":
            raise ToolError(f"isolation=kernel: on this machine the kernel does not guard {', '.join(self.gaps)}")
        if self.gaps:
            _logger.warning("python tool: on this machine the kernel does not guard %s", ", ".join(self.gaps))

    @property
    def gaps(self) -> tuple[str, ...]:
        """What only Python itself guards on this machine, or nothing at all: `("the network", "files")`."""
        guards = {
            "the network": {Protection.NAMESPACES, Protection.SECCOMP},
            "files": {Protection.LANDLOCK},
            "processes": {Protection.NAMESPACES, Protection.SECCOMP},
            "memory": {Protection.MEMORY_LIMIT},
        }
        return tuple(what for what, enough in guards.items() if not enough & self.protections)

    async def run(self, code: str) -> Outcome:
        """Runs the code, after those that wait already; RuntimeError if the sandbox itself breaks."""
        slots = self._slots.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self.settings.at_once or _usable_cpus())
        )
        async with slots:
            outcome = await self._run(code)
        self.endings[outcome.ending] += 1
        return outcome

    async def _run(self, code: str) -> Outcome:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.settings.seconds + _START_SECONDS):
                process.stdin.write(_write_request(code, self.settings, self.protections))
                with contextlib.suppress(ConnectionError):
                    await process.stdin.drain()
                report = await _read(process.stdout, _HEADER_BYTES + (self.settings.output_kb << 10))
        except TimeoutError:
            return Outcome(ending=Ending.TIME, output="")
        finally:
            await _end(process)
        return _read_report(report)[0]


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """All of a stream, of which no more than `limit` is kept."""
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: limit - len(kept)]
    return kept


async def _end(process: asyncio.subprocess.Process) -> None:
    """Waits for a process that has ended, or ends now that its input does; kills it if it will not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        _kill(process)
        await process.wait()
    except asyncio.CancelledError:
        _kill(process)
        raise


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        # The guard is in the same group, and the kernel ends the code with the guard.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@functools.cache
def _find_protections(wanted: frozenset[Protection]) -> frozenset[Protection]:
    """Those of the wanted protections that this machine gives; fewer are tried where code cannot run under all."""
    if os.name != "posix" or not sys.executable:
        raise ToolError("the python tool starts processes as Linux and macOS do, which cannot be done here")
    own_world = {Protection.NAMESPACES, Protection.MOUNTS}
    from_kernel = own_world | {Protection.LANDLOCK, Protection.SECCOMP}
    said = b""
    for without in (set(), own_world, from_kernel) if sys.platform == "linux" else (from_kernel,):
        said = _try_run(wanted - without)
        with contextlib.suppress(RuntimeError):
            outcome, in_force = _read_report(said)
            if outcome.ending is Ending.DONE:
                return in_force
    raise ToolError(f"the python tool cannot run code on this machine: {said.decode('utf-8', 'replace')[-500:]}")


def _try_run(protections: frozenset[Protection]) -> bytes:
    request = _write_request(_TRIAL, PythonSettings(seconds=30), protections)
    stdin, ours = os.pipe()
    try:
        os.write(ours, request)
        trial = subprocess.run(
            _COMMAND,
            env=_environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error).encode()
    finally:
        os.close(stdin)
        os.close(ours)
    return trial.stdout


def _write_request(code: str, settings: PythonSettings, protections: frozenset[Protection]) -> bytes:
    request = {
        "code": code,
        "seconds": settings.seconds,
        "memory": settings.memory_mb << 20,
        "disk": settings.disk_mb << 20,
        "output": settings.output_kb << 10,
        "readable": [os.path.abspath(path) for path in settings.readable],
        "protections": [protection.value for protection in protections],
        "folder": tempfile.gettempdir(),
    }
    return marshal.dumps(request)


def _read_report(report: bytes) -> tuple[Outcome, frozenset[Protection]]:
    header, _, output = report.partition(b"\n")
    try:
        ending, number, protections = header.decode().split(" ")
        in_force = frozenset(Protection(name) for name in protections.split(",") if name)
        outcome = Outcome(ending=Ending(ending), number=int(number), output=output.decode("utf-8", "replace"))
    except ValueError:
        raise RuntimeError(f"the sandbox broke: {report[-500:].decode('utf-8', 'replace')}") from None
    return outcome, in_force


def _environment() -> dict[str, str]:
    """Nothing of the trainer's but where Python's own libraries are, where they are not in their usual place."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **kept}


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
