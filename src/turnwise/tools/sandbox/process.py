"""`ProcessSandbox`: runs each piece of code in a process of its own, restricted by what the kernel offers.

The protections, strongest first (`ProcessSandbox.protections` has those in force on this machine):

    namespaces    no network; the code sees no process but its own, and all of them end with it
    mounts        the file system is read-only; the working directory is in memory, with a total size
    landlock      nothing but the working directory and Python's own library can be read
    seccomp       no sockets, no other processes, no access to the trainer, no memory that goes uncounted
    memory_limit  the process's memory; macOS has no such limit
    audit_hook    the same rules inside Python, with messages; alone, it stops accidents and no attacker

Wall and CPU time, output, the size of files and the number of open ones are limited everywhere. Namespaces and mounts
need a system that grants them to users, which many containers do not; Landlock needs Linux 5.13, seccomp x86_64 or
aarch64. Without Landlock and seccomp this is no boundary against a determined attacker, and with all in force the code
still shares the machine's kernel.

Invariant: that of `Sandbox`; the code's process and its children end with the call, and so do its files.
"""

import asyncio
import contextlib
import functools
import marshal
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from turnwise.errors import ToolError
from turnwise.tools.sandbox.base import CodeResult, ExitKind, Resource, SandboxSettings, check_gaps

_START_SECONDS = 30.0
"""For a process to start on a busy machine, beside the code's own time."""
_END_SECONDS = 3.0
_HEADER_BYTES = 1024

# The package itself takes long to import, so the process gets empty packages in which its few modules are found.
_START = """
import sys
for name, folder in zip(("turnwise", "turnwise.tools", "turnwise.tools.sandbox"), sys.argv[1:], strict=True):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [folder]
from turnwise.tools.sandbox.guard import main
main()
"""
_HERE = Path(__file__).parent
# Isolated mode except for the environment, which is ours: PYTHONHASHSEED gives sets the same order every time.
_COMMAND = (sys.executable, "-s", "-P", "-S", "-c", _START, str(_HERE.parents[1]), str(_HERE.parent), str(_HERE))
_TRIAL = "import hashlib, json, threading; open('trial', 'w').write('written')"


class Protection(StrEnum):
    """A restriction on the code; the module's docstring says what each does."""

    NAMESPACES = "namespaces"
    MOUNTS = "mounts"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"
    MEMORY_LIMIT = "memory_limit"
    AUDIT_HOOK = "audit_hook"


class ProcessSandbox:
    """`await ProcessSandbox(SandboxSettings(seconds=2)).run("6 * 7")`."""

    def __init__(self, settings: SandboxSettings, *, protections: Collection[Protection] = tuple(Protection)) -> None:
        """Finds out, with a trial run, which of the protections this machine offers."""
        for path in settings.readable:
            if not os.path.exists(path):
                raise ToolError(f"readable: there is no file or folder {path}; correct it or leave it out")
        self.settings = settings
        self.protections = _find_protections(frozenset(protections))
        """Those in force, the same for every run."""
        self.exits: Counter[ExitKind] = Counter()
        """How often each kind of exit occurred."""
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        check_gaps(self.gaps, settings.isolation)

    @property
    def gaps(self) -> tuple[Resource, ...]:
        """What only Python itself guards on this machine, or nothing at all: `("the network", "files")`."""
        guards = {
            Resource.NETWORK: {Protection.NAMESPACES, Protection.SECCOMP},
            Resource.FILES: {Protection.LANDLOCK},
            Resource.PROCESSES: {Protection.NAMESPACES, Protection.SECCOMP},
            Resource.MEMORY: {Protection.MEMORY_LIMIT},
        }
        return tuple(resource for resource, enough in guards.items() if not enough & self.protections)

    async def run(self, code: str) -> CodeResult:
        """Runs the code, after those that wait already; RuntimeError if the sandbox itself fails."""
        slots = self._slots.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self.settings.at_once or _usable_cpus())
        )
        async with slots:
            result = await self._run(code)
        self.exits[result.exit] += 1
        return result

    async def close(self) -> None:
        """Every process ended with its run: there is nothing to free."""

    async def _run(self, code: str) -> CodeResult:
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
            return CodeResult(exit=ExitKind.TIMEOUT, output="")
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
    """Closes the process's input, which ends it, and waits; kills it if that takes too long."""
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
        # The guard is in the same group, and the kernel kills the code with the guard.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@functools.cache
def _find_protections(wanted: frozenset[Protection]) -> frozenset[Protection]:
    """Those of the wanted protections that this machine offers; fewer are tried where code cannot run under all."""
    if os.name != "posix" or not sys.executable:
        raise ToolError("the python tool starts processes as Linux and macOS do, which cannot be done here")
    isolated = {Protection.NAMESPACES, Protection.MOUNTS}
    from_kernel = isolated | {Protection.LANDLOCK, Protection.SECCOMP}
    report = b""
    for without in (set(), isolated, from_kernel) if sys.platform == "linux" else (from_kernel,):
        report = _try_run(wanted - without)
        with contextlib.suppress(RuntimeError):
            result, in_force = _read_report(report)
            if result.exit is ExitKind.FINISHED:
                return in_force
    raise ToolError(f"the python tool cannot run code on this machine: {report.decode('utf-8', 'replace')[-500:]}")


def _try_run(protections: frozenset[Protection]) -> bytes:
    request = _write_request(_TRIAL, SandboxSettings(seconds=30), protections)
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


def _write_request(code: str, settings: SandboxSettings, protections: frozenset[Protection]) -> bytes:
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


def _read_report(report: bytes) -> tuple[CodeResult, frozenset[Protection]]:
    header, _, output = report.partition(b"\n")
    try:
        exit_kind, status, protections = header.decode().split(" ")
        in_force = frozenset(Protection(name) for name in protections.split(",") if name)
        text = output.decode("utf-8", "replace")
        result = CodeResult(exit=ExitKind(exit_kind), status=int(status), output=text)
    except ValueError:
        raise RuntimeError(f"the sandbox broke: {report[-500:].decode('utf-8', 'replace')}") from None
    return result, in_force


def _environment() -> dict[str, str]:
    """Nothing of the trainer's environment but the place of Python's own libraries, where that is not the usual one."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **kept}


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
