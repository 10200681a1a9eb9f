"""The lock of a run directory: one process trains in it, and the file `.lock` names that process.

Invariant: a lock belongs to a live process or to none. `.lock` holds host, pid and the start of that process, so a
process that was killed holds nothing, even if its pid is used again; readers of a run take no lock.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from turnwise.errors import RunError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that trains: `Holder(host="node-7", pid=4711, started="5cd...-183372")`."""

    host: str
    pid: int
    started: str | None
    """When the process started, as its system tells it; None where the system does not."""

    @classmethod
    def this_process(cls) -> "Holder":
        return cls(host=socket.gethostname(), pid=os.getpid(), started=start_of_process(os.getpid()))

    @property
    def is_dead(self) -> bool:
        """Known to be dead: of another host, nothing is known."""
        return (
            self.host == socket.gethostname()
            and self.started is not None
            and start_of_process(self.pid) != self.started
        )


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Holds the lock of a run directory, which is made if need be, and removed if it is still empty at the end."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    path, own = folder / LOCK, Holder.this_process()
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: a file, not a folder; choose another --run")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _take(path, own)
    except OSError as error:
        raise RunError(f"{folder}: cannot write a run here: {error.strerror}; choose another --run") from None
    try:
        yield
    finally:
        with suppress(OSError):
            _release(path, own)
        with suppress(OSError):  # not empty: it has become a run
            for empty in made:
                empty.rmdir()


def _take(path: Path, own: Holder) -> None:
    with _opened_alone(path) as file:
        holder = _read(file)
        if holder is not None and not holder.is_dead:
            raise RunError(_refusal(path, holder))
        file.seek(0)
        file.truncate()
        json.dump(asdict(own), file)
        file.flush()
        os.fsync(file.fileno())


def _release(path: Path, own: Holder) -> None:
    with _opened_alone(path) as file:
        if _read(file) == own:
            path.unlink()


@contextmanager
def _opened_alone(path: Path) -> Iterator[TextIO]:
    """Opens the lock's file, one process at a time: for the moment of looking and writing, never for the whole run.

    The run is held by the content: a file lock that lasted would be inherited by forks, and outlive a killed run.
    """
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8") as file:
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks: two that start in the same instant may collide
                    fcntl.flock(file, fcntl.LOCK_EX)
            try:
                current = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                current = False
            if current:  # else its holder removed it while this process waited
                yield file
                return


def _read(file: TextIO) -> Holder | None:
    """The holder; None for a file that a process began to write and did not finish, since it died there."""
    try:
        data = json.loads(file.read())
        return Holder(host=str(data["host"]), pid=int(data["pid"]), started=data["started"])
    except (ValueError, TypeError, KeyError):
        return None


def _refusal(path: Path, holder: Holder) -> str:
    who = f"process {holder.pid} on host {holder.host}"
    if holder.host == socket.gethostname() and holder.started is not None:
        return f"{path.parent}: {who} is training this run; let it finish or stop it, or choose another --run"
    return (
        f"{path.parent}: {who} holds this run, and from here nothing shows whether it is alive; if it has ended, "
        f"remove {path} and try again"
    )


def start_of_process(pid: int) -> str | None:
    """A mark of one process that no later one with its pid has; None if there is no such process, or it is a zombie."""
    if sys.platform == "linux":
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            # The name before the last bracket may hold spaces and brackets itself; `state` follows it.
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"{boot}-{fields[19]}"
    if sys.platform == "win32":
        return None
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
    return started.strip() or None if state and not state.startswith("Z") else None
