"""`BubblewrapSandbox`: the guard and the code run inside bubblewrap; its file system holds Python's library alone.

Bubblewrap needs user namespaces or a binary with the setuid bit: where this process may not make namespaces, that one
may. Landlock, seccomp and the limits of `ProcessSandbox` are put in force inside it as well.
"""

import os
import shutil
import sys

from turnwise.errors import ToolError
from turnwise.tools.sandbox.base import SandboxSettings
from turnwise.tools.sandbox.process import PACKAGE, Launch, ProcessSandbox, guard_command
from turnwise.tools.sandbox.protection import Protection
from turnwise.tools.sandbox.worker import LIBRARIES

SCRATCH = "/scratch"
"""Where working directories are, inside."""


class BubblewrapSandbox(ProcessSandbox):
    """`await BubblewrapSandbox(SandboxSettings(seconds=2)).run("6 * 7")`."""

    def _find_launch(self) -> Launch:
        program = shutil.which("bwrap")
        if program is None:
            raise ToolError("sandbox.kind=bubblewrap: there is no program bwrap; install the package bubblewrap")
        options = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        for path in paths_inside(self.settings):
            options += ["--ro-bind", os.path.realpath(path), path]
        options += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        options += ["--size", str(scratch_bytes(self.settings)), "--tmpfs", SCRATCH, "--remount-ro", "/"]
        return Launch(
            command=(program, *options, "--", *guard_command(os.path.realpath(sys.executable), PACKAGE)),
            folder=SCRATCH,
            provides=frozenset({Protection.ROOT, Protection.NAMESPACES}),
        )


def paths_inside(settings: SandboxSettings) -> list[str]:
    """The files and folders of this machine that Python needs and the settings allow, outer folders first."""
    libraries = [f"{sys.base_prefix}/lib", *LIBRARIES, *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    paths = [os.path.realpath(sys.executable), str(PACKAGE), *libraries, *map(os.path.abspath, settings.readable)]
    return sorted({path for path in paths if path and os.path.exists(path)})


def scratch_bytes(settings: SandboxSettings) -> int:
    """The size of the file system for working directories: twice the limit, which the guard enforces by measuring."""
    return settings.disk_mb << 21
