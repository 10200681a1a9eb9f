"""What stands between the code and the machine, and which of it must be in force for a resource to be guarded.

Invariant: a resource is guarded only by what the kernel enforces, or a process that the code cannot reach; the audit
hook guards nothing.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from turnwise.tools.sandbox.base import Resource


class Protection(StrEnum):
    """A restriction on the code, strongest first."""

    ROOT = "root"
    """A file system of its own, read-only, with Python's library in it: bubblewrap, gVisor or a container."""
    NAMESPACES = "namespaces"
    """No network; the code sees no process but its own, and all of them end with it."""
    MOUNTS = "mounts"
    """The file system is read-only; the working directory is in memory, with a total size and number of files."""
    LANDLOCK = "landlock"
    """Nothing but the working directory and Python's own library can be read or written."""
    SECCOMP = "seccomp"
    """A list of allowed system calls (`seccomp.py`); all others are refused."""
    MEMORY_LIMIT = "memory_limit"
    """Of the process's memory; macOS has no such limit."""
    DISK_WATCH = "disk_watch"
    """Where there are no mounts: the guard measures the working directory 100 times a second and ends the code."""
    AUDIT_HOOK = "audit_hook"
    """The same rules inside Python, with messages for the model."""


_GUARDS: Final[dict[Resource, tuple[set[Protection], ...]]] = {
    # Each set is enough; a namespace does not reach sockets that are files, nor Landlock modes and times.
    Resource.NETWORK: ({Protection.SECCOMP}, {Protection.NAMESPACES, Protection.ROOT}),
    Resource.FILES: (
        {Protection.LANDLOCK, Protection.SECCOMP},
        {Protection.LANDLOCK, Protection.MOUNTS},
        {Protection.ROOT},
    ),
    Resource.PROCESSES: ({Protection.SECCOMP},),
    Resource.MEMORY: ({Protection.MEMORY_LIMIT, Protection.SECCOMP},),
    Resource.DISK: ({Protection.MOUNTS}, {Protection.DISK_WATCH, Protection.SECCOMP}),
}


def find_gaps(in_force: Collection[Protection]) -> tuple[Resource, ...]:
    """What these protections leave unguarded: `find_gaps({Protection.AUDIT_HOOK})` is everything."""
    present = set(in_force)
    return tuple(resource for resource, enough in _GUARDS.items() if not any(one <= present for one in enough))
