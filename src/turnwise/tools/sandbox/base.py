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


class SandboxSettings(Settings):
    """Which sandbox runs the code, and what the code may use."""

    kind: str = "process"
    """`process` (a process of its own, restricted by the kernel), or your own: `module:name` or `file.py:name`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Further keyword arguments of that class."""
    seconds: float = Field(default=5.0, gt=0, le=3600)
    """Wall time, and CPU time over all threads, until the code is stopped."""
    memory_mb: int = Field(default=256, ge=8)
    """Memory beyond what Python itself takes."""
    disk_mb: int = Field(default=16, ge=1)
    """Bytes written to the working directory in all; to each file where the sandbox cannot count them together."""
    output_kb: int = Field(default=64, ge=1)
    """Code that prints more is stopped."""
    readable: tuple[str, ...] = ()
    """Files and folders that the code may read beside its working directory and Python's own library."""
    at_once: int | None = Field(default=None, ge=1)
    """Calls that run side by side while others wait; by default one for each CPU."""
    isolation: Literal["best", "kernel"] = "best"
    """`kernel` refuses to start where the network, files, processes or memory are not guarded by the kernel."""


class Resource(StrEnum):
    """What a sandbox guards against the code."""

    NETWORK = "the network"
    FILES = "files"
    PROCESSES = "processes"
    MEMORY = "memory"


class ExitKind(StrEnum):
    """How a piece of code ended."""

    FINISHED = "finished"
    EXCEPTION = "exception"
    """An exception that the code did not catch; its traceback was printed."""
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MUCH_OUTPUT = "too_much_output"
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
        """What nothing stronger than Python itself guards on this machine."""

    async def run(self, code: str) -> CodeResult:
        """Runs the code once a place is free; RuntimeError if the sandbox itself fails."""

    async def close(self) -> None:
        """Frees what is kept between runs, such as a container; the sandbox is not used afterwards."""


def check_gaps(gaps: Sequence[Resource], isolation: Literal["best", "kernel"]) -> None:
    """Logs what the kernel does not guard here; a ToolError where the settings demand that it does."""
    if gaps and isolation == "kernel":
        raise ToolError(f"isolation=kernel: on this machine the kernel does not guard {', '.join(gaps)}")
    if gaps:
        _logger.warning("python tool: on this machine the kernel does not guard %s", ", ".join(gaps))
