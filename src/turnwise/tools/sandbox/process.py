"""`ProcessSandbox`: runs each piece of code in a process of its own, restricted by what the kernel offers.

`ProcessSandbox.protections` has the protections in force on this machine; `protection.py` says what each does. Wall and
CPU time, output, the size of files and the number of open ones are limited everywhere. Namespaces and mounts need a
system that grants them to users, which many containers do not; Landlock needs Linux 5.13, seccomp x86_64 or aarch64.
With all in force the code still shares the machine's kernel. docs/sandbox.md has what was tried against it.

Invariant: that of `Sandbox`; the code's process and its children end with the call, and so do its files.
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
from pathlib import Path

from turnwise.errors import ToolError
from turnwise.tools.sandbox import scratch
from turnwise.tools.sandbox.base import CodeResult, ExitKind, Resource, SandboxSettings, check_gaps
from turnwise.tools.sandbox.protection import Protection, find_gaps

_logger = logging.getLogger(__name__)

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
_TRIAL = "import hashlib, json, threading; open('trial', 'w').write('written')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a guard is started: directly, or inside something that isolates it further."""

    command: tuple[str, ...]
    folder: str | None = None
    """Where it makes working directories, if not in this machine's folder for temporary files."""
    environment: tuple[str, ...] = ()
    """The names of further variables that the command needs and does not hand on to the code."""
    provides: frozenset[Protection] = frozenset()
    """The protections that the command itself puts around the guard."""


def guard_command(python: str, package: Path) -> tuple[str, ...]:
    """Starts a guard whose modules lie in the folder `package`."""
    # Isolated mode except for the environment, which is ours: PYTHONHASHSEED gives sets the same order every time.
    return (python, "-s", "-P", "-S", "-c", _START, str(package.parents[1]), str(package.parent), str(package))


PACKAGE = Path(__file__).parent
_COMMAND = guard_command(sys.executable, PACKAGE)


class ProcessSandbox:
    """`await ProcessSandbox(SandboxSettings(seconds=2)).run("6 * 7")`."""

    def __init__(
        self,
        settings: SandboxSettings,
        *,
        protections: Collection[Protection] = tuple(Protection),
        landlock: int | None = None,
    ) -> None:
        """Finds out, with a trial run, which of the protections this machine offers.

        Args:
            settings: The limits.
            protections: Those to ask for.
            landlock: The newest version of Landlock to use, as on an older kernel.
        """
        for path in settings.readable:
            if not os.path.exists(path):
                raise ToolError(f"readable: there is no file or folder {path}; correct it or leave it out")
        self.settings = settings
        self._landlock = landlock
        self._launch = self._find_launch()
        self.protections = _find_protections(self._launch, frozenset(protections), landlock)
        """Those in force, the same for every run."""
        self.exits: Counter[ExitKind] = Counter()
        """How often each kind of exit occurred."""
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        check_gaps(self.gaps, settings.isolation)

    def _find_launch(self) -> Launch:
        """Where this raises ToolError, the machine lacks the command."""
        return Launch(command=_COMMAND)

    @property
    def gaps(self) -> tuple[Resource, ...]:
        """What nothing but Python itself guards on this machine: `("the network", "files")`."""
        return find_gaps(self.protections)

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
        workdir = _name_workdir(self._launch)
        process = await asyncio.create_subprocess_exec(
            *self._command(),
            env=guard_environment(*self._launch.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.settings.seconds + _START_SECONDS):
                process.stdin.write(_write_request(code, self.settings, self.protections, workdir, self._landlock))
                with contextlib.suppress(ConnectionError):
                    await process.stdin.drain()
                report = await _read(process.stdout, _HEADER_BYTES + (self.settings.output_kb << 10))
        except TimeoutError:
            return CodeResult(exit=ExitKind.TIMEOUT, output="")
        finally:
            try:
                await _end(process)
            finally:
                _remove_rest(workdir)
        return _read_report(report)[0]

    def _command(self) -> tuple[str, ...]:
        """Of one run."""
        return self._launch.command


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


def _name_workdir(launch: Launch) -> str:
    return f"{launch.folder or tempfile.gettempdir()}/turnwise-python-{os.getpid()}-{os.urandom(8).hex()}"


def _remove_rest(workdir: str) -> None:
    """Removes the working directory of a guard that was killed before it could; nothing of the code runs any more."""
    if os.path.lexists(workdir):
        try:
            scratch.remove(workdir)
        except OSError as error:
            _logger.warning("python tool: %s could not be removed: %s", workdir, error)


@functools.cache
def _find_protections(launch: Launch, wanted: frozenset[Protection], landlock: int | None) -> frozenset[Protection]:
    """Those of the wanted protections that this machine offers; fewer are tried where code cannot run under all."""
    if os.name != "posix" or not sys.executable:
        raise ToolError("the python tool starts processes as Linux and macOS do, which cannot be done here")
    isolated = {Protection.NAMESPACES, Protection.MOUNTS}
    from_kernel = isolated | {Protection.LANDLOCK, Protection.SECCOMP}
    report = b""
    asked = wanted - launch.provides
    for without in (set(), isolated, from_kernel) if sys.platform == "linux" else (from_kernel,):
        report = _try_run(launch, asked - without, landlock)
        with contextlib.suppress(RuntimeError):
            result, in_force = _read_report(report)
            if result.exit is ExitKind.FINISHED:
                return in_force | launch.provides
    raise ToolError(f"the python tool cannot run code on this machine: {report.decode('utf-8', 'replace')[-500:]}")


def _try_run(launch: Launch, protections: frozenset[Protection], landlock: int | None) -> bytes:
    workdir = _name_workdir(launch)
    request = _write_request(_TRIAL, SandboxSettings(seconds=30), protections, workdir, landlock)
    stdin, ours = os.pipe()
    try:
        os.write(ours, request)
        trial = subprocess.run(
            launch.command,
            env=guard_environment(*launch.environment),
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
        _remove_rest(workdir)
    return trial.stdout


def _write_request(
    code: str,
    settings: SandboxSettings,
    protections: frozenset[Protection],
    workdir: str,
    landlock: int | None,
) -> bytes:
    request = {
        "code": code,
        "seconds": settings.seconds,
        "memory": settings.memory_mb << 20,
        "disk": settings.disk_mb << 20,
        "output": settings.output_kb << 10,
        "readable": [os.path.abspath(path) for path in settings.readable],
        "protections": [protection.value for protection in protections],
        "workdir": workdir,
        "landlock": landlock,
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


def guard_environment(*names: str) -> dict[str, str]:
    """Nothing of the trainer's environment but the place of Python's libraries, if it is unusual, and these names."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", *names) if name in os.environ}
    return {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **kept}


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
