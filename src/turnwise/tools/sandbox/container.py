"""`ContainerSandbox`: the guard and the code run in a container of podman or docker, one for each call.

Needs an image that is already on the machine and has Python 3.11 or later; nothing is pulled. Landlock, seccomp and the
limits of `ProcessSandbox` are put in force inside as well, as far as the container's runtime lets them.
"""

import os
import shutil
from collections.abc import Collection

from turnwise.errors import ToolError
from turnwise.tools.sandbox.base import SandboxSettings
from turnwise.tools.sandbox.bubblewrap import SCRATCH, scratch_bytes
from turnwise.tools.sandbox.process import PACKAGE, Launch, ProcessSandbox, guard_command, guard_environment
from turnwise.tools.sandbox.protection import Protection

_PROGRAMS = ("podman", "docker")
_INSIDE = "/turnwise/tools/sandbox"
_ENVIRONMENT = (
    "PATH",
    "HOME",
    "USER",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "DOCKER_HOST",
    "CONTAINER_HOST",
)
_PIDS = 256
"""Processes and threads of one container."""
_PYTHON_MB = 256
"""Memory for Python and the guard beside the code's own."""


class ContainerSandbox(ProcessSandbox):
    """`await ContainerSandbox(SandboxSettings(seconds=2), image="python:3.12-slim").run("6 * 7")`."""

    def __init__(
        self,
        settings: SandboxSettings,
        *,
        image: str = "python:3.11-slim",
        program: str | None = None,
        protections: Collection[Protection] = tuple(Protection),
    ) -> None:
        """Finds podman or docker and tries the image.

        Args:
            settings: The limits.
            image: With Python as `python3`; it must be on the machine.
            program: The command, such as `nerdctl`; podman or docker by default.
            protections: Those to ask for inside the container.
        """
        self._image = image
        self._program = program
        super().__init__(settings, protections=protections)

    def _find_launch(self) -> Launch:
        program = next(filter(None, map(shutil.which, [self._program] if self._program else _PROGRAMS)), None)
        if program is None:
            wanted = self._program or " or ".join(_PROGRAMS)
            raise ToolError(f"sandbox.kind=container: there is no program {wanted}; install it, or name another kind")
        memory = f"{self.settings.memory_mb + 2 * self.settings.disk_mb + _PYTHON_MB}m"
        options = ["run", "--rm", "--interactive", "--pull=never", "--network=none", "--read-only", "--cap-drop=all"]
        options += [
            "--security-opt=no-new-privileges",
            f"--pids-limit={_PIDS}",
            f"--memory={memory}",
            "--ulimit=nofile=256:256",
        ]
        options += [f"--tmpfs={SCRATCH}:rw,nosuid,nodev,mode=1777,size={scratch_bytes(self.settings)}"]
        options += [f"--volume={PACKAGE}:{_INSIDE}:ro", f"--user={os.geteuid()}:{os.getegid()}", f"--workdir={SCRATCH}"]
        options += [f"--volume={path}:{path}:ro" for path in map(os.path.abspath, self.settings.readable)]
        options += [f"--env={name}={value}" for name, value in guard_environment().items() if name != "LD_LIBRARY_PATH"]
        return Launch(
            command=(program, *options, self._image, *guard_command("python3", type(PACKAGE)(_INSIDE))),
            folder=SCRATCH,
            environment=_ENVIRONMENT,
            provides=frozenset({Protection.ROOT, Protection.NAMESPACES}),
        )
