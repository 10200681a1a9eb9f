"""`Sandbox`: the seam between the python tool and whatever holds the code that a model wrote.

Invariant: `Sandbox.run` answers within the time limit and a few seconds, whatever the code does, and leaves nothing of
it behind. What a sandbox does not guard on this machine is listed in its `gaps`, never passed over.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field, JsonValue

from turnwise.errors import ToolError
from turnwise.settings import Settings

_logger = logging.getLogger(__name__)

Isolation = Literal["best", "kernel", "partial", "none"]


class SandboxSettings(Settings):
    """Which sandbox runs the code, and what the code may use."""

    kind: str = "auto"
    """`process` (restricted by this kernel), `bubblewrap`, `gvisor`, `container` (podman or docker); `auto`: the first
    of these that leaves no gap here; or your own: `module:name` or `file.py:name`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Further keyword arguments of that class."""
    seconds: float = Field(default=5.0, gt=0, le=3600)
    """Wall time, and CPU time over all threads, until the code is stopped."""
    memory_mb: int = Field(default=256, ge=8)
    """Memory beyond what Python itself takes."""
    disk_mb: int = Field(default=16, ge=1)
    """Bytes in the working directory in all, files that are deleted but open included; it holds 4,096 files at most."""
    output_kb: int = Field(default=64, ge=1)
    """Code that prints more is stopped."""
    readable: tuple[str, ...] = ()
    """Files and folders that the code may read beside its working directory and Python's own library."""
    at_once: int | None = Field(default=None, ge=1)
    """Calls that run side by side while others wait; by default one for each CPU."""
    isolation: Isolation = "best"
    """The least isolation that may run code. `best` and `kernel`: all of network, files, processes, memory and disk are
    guarded by the kernel, and nothing runs elsewhere; `partial`: some are; `none`: whatever the machine offers."""


class Resource(StrEnum):
    """What a sandbox guards against the code."""

    NETWORK = "the network"
    FILES = "files"
    PROCESSES = "processes"
    MEMORY = "memory"
    DISK = "disk"


class ExitKind(StrEnum):
    """How a piece of code ended."""

    FINISHED = "finished"
    EXCEPTION = "exception"
    """An exception that the code did not catch; its traceback was printed."""
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MUCH_OUTPUT = "too_much_output"
    TOO_MUCH_DISK = "too_much_disk"
    """More bytes or files in the working directory than allowed."""
    CRASHED = "crashed"
    """A signal, or an exit status that the code chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """`CodeResult(exit=ExitKind.FINISHED, output="42\\n")`."""

    exit: ExitKind
    output: str
    """What was printed, the value of a last expression and a traceback included."""
    status: int = 0
    """Of a crash: the exit status, or minus the signal."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs untrusted Python; nothing is kept from one run to the next."""

    @property
    def settings(self) -> SandboxSettings:
        """The limits in force."""

    @property
    def gaps(self) -> Sequence[Resource]:
        """What the kernel does not guard on this machine; refusals inside Python, by an audit hook, guard nothing."""

    async def run(self, code: str) -> CodeResult:
        """Runs the code once a place is free; RuntimeError if the sandbox itself fails."""

    async def close(self) -> None:
        """Frees what is kept between runs, such as a container; the sandbox is not used afterwards."""


def check_gaps(gaps: Sequence[Resource], isolation: Isolation) -> None:
    """A ToolError where the settings do not accept what the kernel leaves unguarded here; logs it where they do."""
    if not gaps:
        return
    level: Isolation = "none" if len(gaps) == len(Resource) else "partial"
    unguarded = ", ".join(gaps)
    if isolation in ("best", "kernel") or (isolation == "partial" and level == "none"):
        raise ToolError(
            f"python tool: isolation={isolation}: on this machine the kernel does not guard {unguarded}; install "
            "bubblewrap, gVisor or podman, or accept what this leaves open by name: "
            f"isolation={level} in the settings of the sandbox"
        )
    _logger.warning("python tool: isolation=%s: on this machine the kernel does not guard %s", isolation, unguarded)
