"""The process that runs the code: drops what the code must not have, then runs it.

Invariant: before the first line of the code runs, every limit and every requested protection that the machine offers is
in force, and the guard knows which those are. Its start is part of every call: so it imports next to nothing.
"""

import math
import os
import resource
import sys
from _collections_abc import Callable

from turnwise.tools.sandbox.audit import AuditHook
from turnwise.tools.sandbox.code import FILE, run_code

try:
    from turnwise.tools.sandbox import kernel
except ImportError:
    kernel = None  # type: ignore[assignment]  # there is no optional type of a module

__all__ = ["LIBRARIES", "Request", "attempt", "kernel", "work"]

_MAX_OPEN_FILES = 64
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_DATA = ("/usr/share/zoneinfo", "/etc/localtime", "/etc/ld.so.cache", "/dev/zero", "/dev/random", "/dev/urandom")


class Request:
    """The trainer's request; a plain class, because importing `dataclasses` would take longer than all the rest."""

    def __init__(
        self,
        *,
        code: str,
        seconds: float,
        memory: int,
        disk: int,
        output: int,
        readable: list[str],
        protections: list[str],
        workdir: str,
        landlock: int | None,
    ) -> None:
        self.code = code
        self.seconds = seconds
        self.memory = memory
        """Bytes beyond those that the interpreter itself has taken."""
        self.disk = disk
        """Bytes that the working directory may hold, and each of its files."""
        self.output = output
        """Bytes that may be printed."""
        self.readable = readable
        self.protections = protections
        self.workdir = workdir
        """The working directory, which the guard makes and removes."""
        self.landlock = landlock
        """The newest version of Landlock to use; None: the kernel's."""


def attempt(protection: Callable[..., None], *arguments: object) -> bool:
    """Whether a protection could be put in force; one that could not is missing from the report, and no error."""
    try:
        protection(*arguments)
    except OSError:
        return False
    return True


def work(request: Request, output: int, ready: int) -> None:
    """Turns a child of the guard's into the process that runs the code; does not return.

    Writes its place beneath /proc and the protections in force to `ready`, and closes it, before the code starts.
    """
    os.setsid()
    _replace_files(output, ready)
    os.chdir(request.workdir)
    place = _place()
    in_force = _protect(request)
    os.write(3, " ".join([place, *in_force]).encode())
    os.close(3)
    os._exit(run_code(request.code))


def _replace_files(output: int, ready: int) -> None:
    """Nothing is open but an empty input, the output, and `ready` as descriptor 3."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(ready, 3)
    os.closerange(4, 1024)
    for stream in (sys.stdout, sys.stderr):
        # By lines, so that what was printed before an abrupt end is seen.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]  # they are text files here


def _place() -> str:
    """This process as /proc shows it, which may be that of an outer PID namespace; `-` where there is no /proc."""
    try:
        return f"/proc/{os.readlink('/proc/self')}"
    except OSError:
        return "-"


def _protect(request: Request) -> list[str]:
    """Puts limits and protections in force, one by one, and names those that are."""
    readable = [*sys.path, f"{sys.base_prefix}/lib", *LIBRARIES, *_DATA, *request.readable]
    readable += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    readable, writable = [path for path in readable if path], [request.workdir, os.devnull]
    in_force = _limit(request)
    if kernel is not None:
        attempt(kernel.die_with_parent)
        attempt(kernel.hide, False)  # the guard looks at what it has open
        # Landlock and seccomp need a process that cannot gain privileges.
        asked = request.protections if attempt(kernel.drop_privileges) else ()
        if "landlock" in asked and attempt(kernel.restrict_files, readable, writable, request.landlock):
            in_force.append("landlock")
        if "seccomp" in asked and attempt(kernel.filter_system_calls):
            in_force.append("seccomp")
    _forget(request.workdir)
    if "audit_hook" in request.protections:
        if "seccomp" not in in_force:
            _set_limit(resource.RLIMIT_NPROC, 0)
        sys.addaudithook(AuditHook(readable, writable))
        in_force.append("audit_hook")
    return in_force


def _limit(request: Request) -> list[str]:
    seconds = math.ceil(request.seconds)
    _set_limit(resource.RLIMIT_CORE, 0)
    _set_limit(resource.RLIMIT_CPU, seconds, seconds + 1)
    _set_limit(resource.RLIMIT_FSIZE, request.disk)
    _set_limit(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    if sys.platform != "linux":
        return []  # macOS accepts a limit on memory and ignores it
    with open("/proc/self/statm") as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    _set_limit(resource.RLIMIT_AS, taken + request.memory)
    return ["memory_limit"]


def _set_limit(which: int, soft: int, hard: int | None = None) -> None:
    """Never above the present limit, which only root may raise."""
    ceiling = resource.getrlimit(which)[1]
    hard = soft if hard is None else hard
    hard = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
    resource.setrlimit(which, (min(soft, hard), hard))


def _forget(workdir: str) -> None:
    """Leaves the code a Python that looks freshly started."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("turnwise", "ctypes", "_ctypes")]:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update({"HOME": workdir, "TMPDIR": workdir, "LANG": "C.UTF-8"})
    sys.argv[:] = [FILE]
    sys.dont_write_bytecode = True
