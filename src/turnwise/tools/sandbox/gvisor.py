"""`GvisorSandbox`: the guard and the code run inside gVisor, a kernel of their own in user space.

The strongest of the backends, since the code's system calls never reach this machine's kernel, and one of the slower
ones: some tenths of a second a call. Needs the program `runsc` and no image: the file system is an empty folder with
Python's library mounted in it.
"""

import json
import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path

from turnwise.errors import ToolError
from turnwise.tools.sandbox.bubblewrap import SCRATCH, paths_inside, scratch_bytes
from turnwise.tools.sandbox.process import PACKAGE, Launch, ProcessSandbox, guard_command, guard_environment
from turnwise.tools.sandbox.protection import Protection

_MEMORY = ("/tmp", "/dev/shm")
_NOBODY = 65534
"""The code's user inside, who may not write to /dev: files that others may not read are not readable here."""


class GvisorSandbox(ProcessSandbox):
    """`await GvisorSandbox(SandboxSettings(seconds=2)).run("6 * 7")`."""

    def _find_launch(self) -> Launch:
        program = shutil.which("runsc")
        if program is None:
            raise ToolError("sandbox.kind=gvisor: there is no program runsc; install gVisor")
        bundle = Path(tempfile.mkdtemp(prefix="turnwise-gvisor-"))
        self._remove_bundle = weakref.finalize(self, shutil.rmtree, bundle, ignore_errors=True)
        self._write_bundle(bundle)
        options = ["--network=none", "--ignore-cgroups", f"--root={bundle / 'state'}"]
        if os.geteuid() != 0:
            options.append("--rootless")
        return Launch(
            command=(program, *options, "run", f"--bundle={bundle}", "trial"),
            folder=SCRATCH,
            provides=frozenset({Protection.ROOT, Protection.NAMESPACES}),
        )

    def _command(self) -> tuple[str, ...]:
        *command, _ = self._launch.command
        return (*command, f"run-{os.urandom(8).hex()}")

    async def close(self) -> None:
        """Removes the folder with the description of the container."""
        self._remove_bundle()

    def _write_bundle(self, bundle: Path) -> None:
        """An OCI bundle: config.json and a root file system with the places to mount on."""
        root = bundle / "rootfs"
        mounts: list[dict[str, object]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": SCRATCH,
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", "mode=1777", f"size={scratch_bytes(self.settings)}"],
            },
        ]
        for path in paths_inside(self.settings):
            real = os.path.realpath(path)
            mounts.append({"destination": path, "type": "bind", "source": real, "options": ["ro", "rbind"]})
            place = root / path.lstrip("/")
            if os.path.isdir(real):
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        for folder in _MEMORY:  # gVisor would put file systems in memory there, without a limit
            mounts.append({"destination": folder, "type": "tmpfs", "source": "tmpfs", "options": ["ro", "size=4096"]})
        for folder in ("proc", "dev", "tmp", SCRATCH.lstrip("/")):
            (root / folder).mkdir(parents=True, exist_ok=True)
        config = {
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": _NOBODY, "gid": _NOBODY},
                "args": guard_command(os.path.realpath(sys.executable), PACKAGE),
                "env": [f"{name}={value}" for name, value in guard_environment().items()],
                "cwd": SCRATCH,
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
        }
        (bundle / "config.json").write_text(json.dumps(config))
