"""What code in the sandbox must not reach: files, servers, a process of the same user; and how they look afterwards."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WORD = "the-word-that-must-not-get-out"
KEY = 0x74750000 | os.getpid() & 0xFFFF
NAME = f"escape-{os.getpid()}"
"""Of the System V and POSIX objects that attempts make."""
MAX_SCRATCH = 256 << 20
"""Bytes that a folder of 4 MB may hold until the guard of a busy machine measures it; attempts try 600 MB."""

_VICTIM = """
import ctypes, os, signal, struct, sys, time
drop = ctypes.create_string_buffer(24)  # a root without privileges, as the code is: otherwise those alone would hold it
ctypes.CDLL(None).capset(ctypes.create_string_buffer(struct.pack("II", 0x20080522, 0), 8), drop)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
    signal.signal(number, lambda number, frame: os.write(1, b"signal %d\\n" % number))
os.write(1, b"ready\\n")
while True: time.sleep(1)
"""


class World:
    """`with World(folder) as world: ...; world.changes()` lists what an attempt changed, in words."""

    def __init__(self, folder: Path) -> None:
        self.outside, self.scratch = folder / "outside", folder / "scratch"
        self.outside.mkdir()
        self.scratch.mkdir()
        tempfile.tempdir = str(self.scratch)
        (self.outside / "empty").mkdir()
        (self.outside / "secret.txt").write_text(WORD)
        (self.outside / "readable.txt").write_text("this may be read and nothing else")
        (self.outside / "outside_module.py").write_text("")
        shutil.copy(_any_library(), self.outside / "library.so")
        with contextlib.closing(sqlite3.connect(self.outside / "kept.db")) as database:
            database.execute("create table kept(word)")
            database.commit()
        with contextlib.suppress(OSError):
            os.setxattr(self.outside / "secret.txt", "user.kept", WORD.encode())
        _remove_shared()
        self._listen()
        self.signals: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: self.signals.append(number))
        self.victim = subprocess.Popen(
            [sys.executable, "-S", "-c", _VICTIM], stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.victim.stdout is not None
        assert self.victim.stdout.readline() == b"ready\n"
        os.set_blocking(self.victim.stdout.fileno(), False)
        self.peak = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        self._before = self._snapshot()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        for server in self._servers.values():
            server.close()
        self.victim.kill()
        self.victim.wait()
        _remove_shared()

    @property
    def names(self) -> str:
        """A line of Python that gives attempts their targets."""
        values = {
            "OUTSIDE": str(self.outside),
            "SECRET": str(self.outside / "secret.txt"),
            "READABLE": str(self.readable),
            "DATABASE": str(self.outside / "kept.db"),
            "STREAM": str(self.outside / "stream"),
            "DATAGRAM": str(self.outside / "datagram"),
            "ABSTRACT": self._abstract,
            "TCP": self._servers["tcp"].getsockname()[1],
            "UDP": self._servers["udp"].getsockname()[1],
            "VICTIM": self.victim.pid,
            "TRAINER": os.getpid(),
            "KEY": KEY,
            "NAME": NAME,
        }
        return "; ".join(f"{name} = {value!r}" for name, value in values.items())

    @property
    def readable(self) -> Path:
        """The one file that the settings open for reading."""
        return self.outside / "readable.txt"

    def changes(self) -> list[str]:
        """What differs from the last look; what was left behind is removed, and the world counts as it is now."""
        deadline = time.monotonic() + 2
        while (left := self._left_behind()) and time.monotonic() < deadline:
            time.sleep(0.01)
        found = (
            [f"left behind: {one}" for one in left] + self._heard() + [f"the trainer got {one}" for one in self.signals]
        )
        before, now = self._before, self._snapshot()
        found += [
            f"{name}: {before.get(name)} -> {now.get(name)}"
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        if self.peak > MAX_SCRATCH:
            found.append(f"{self.peak >> 20} MB in the working directory")
        for pid in self._strays():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for path in self._files():
            subprocess.run(["rm", "-rf", str(path)], check=True)
        self.peak = 0
        self.signals.clear()
        self._before = self._snapshot()
        return found

    def _listen(self) -> None:
        self._abstract = f"turnwise-escape-{os.getpid()}"
        self._servers = {
            "tcp": socket.create_server(("127.0.0.1", 0)),
            "udp": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "stream": socket.socket(socket.AF_UNIX),
            "datagram": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
            "abstract": socket.socket(socket.AF_UNIX),
        }
        self._servers["udp"].bind(("127.0.0.1", 0))
        self._servers["stream"].bind(str(self.outside / "stream"))
        self._servers["datagram"].bind(str(self.outside / "datagram"))
        self._servers["abstract"].bind(f"\0{self._abstract}")
        for name in ("stream", "abstract"):
            self._servers[name].listen()
        for server in self._servers.values():
            server.setblocking(False)

    def _heard(self) -> list[str]:
        found = []
        for name, server in self._servers.items():
            with contextlib.suppress(BlockingIOError):
                if server.type == socket.SOCK_DGRAM:
                    server.recv(99)
                else:
                    server.accept()[0].close()
                found.append(f"the {name} server was reached")
        return found

    def _snapshot(self) -> dict[str, object]:
        taken: dict[str, object] = {}
        for path in (self.outside, *sorted(self.outside.rglob("*"))):
            status = path.lstat()
            times = status.st_mtime_ns if path.is_file() or path == self.outside else 0
            values = (oct(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, status.st_size, times)
            data = path.read_bytes() if path.is_file() and status.st_size < 1 << 16 else b""
            taken[path.name] = (*values, data, _attributes(path))
        pid = self.victim.pid
        assert self.victim.stdout is not None
        taken["the victim"] = self.victim.poll()
        taken["signals of the victim"] = self.victim.stdout.read() or b""
        for name, process in (("victim", pid), ("trainer", os.getpid())):
            if Path(f"/proc/{process}").exists():
                taken[f"settings of the {name}"] = _settings_of(process)
        taken["shared"] = _shared()
        return taken

    def _strays(self) -> list[int]:
        return [pid for pid in _children() if pid != self.victim.pid]

    def _left_behind(self) -> list[str]:
        return [f"process {pid}" for pid in self._strays()] + [path.name for path in self._files()]

    def _files(self) -> list[Path]:
        """What lies where working directories are made, but for what a sandbox keeps until it is closed."""
        return [path for path in self.scratch.iterdir() if not path.name.startswith("turnwise-gvisor-")]

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            with contextlib.suppress(OSError):
                self.peak = max(self.peak, sum(map(_size, self.scratch.glob("turnwise-python-*/*"))))


def adopt_orphans() -> None:
    """Processes whose parents end become this one's, where they are seen."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def _any_library() -> str:
    return next(line.split()[-1] for line in open("/proc/self/maps") if ".so" in line)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _attributes(path: Path) -> list[tuple[str, bytes]]:
    try:
        return [
            (name, os.getxattr(path, name, follow_symlinks=False)) for name in os.listxattr(path, follow_symlinks=False)
        ]
    except OSError:
        return []


def _settings_of(process: int) -> tuple[object, ...]:
    libc = ctypes.CDLL(None)
    return (
        os.getpriority(os.PRIO_PROCESS, process),
        sorted(os.sched_getaffinity(process)),
        os.sched_getscheduler(process),
        libc.syscall(252 if os.uname().machine == "x86_64" else 31, 1, process),
        Path(f"/proc/{process}/limits").read_text(),
        Path(f"/proc/{process}/oom_score_adj").read_text(),
    )


def _shared() -> list[str]:
    """Objects with the names and keys that attempts use; others belong to other programs."""
    found = [name for name in os.listdir("/dev/shm") if name.startswith(f"{NAME}-")]
    for kind in ("shm", "sem", "msg"):
        file = Path(f"/proc/sysvipc/{kind}")
        found += [
            f"{kind} {line}"
            for line in (file.read_text().splitlines() if file.exists() else ())
            if str(KEY) in line.split()[:1]
        ]
    queue = ctypes.CDLL(None).mq_open(f"/{NAME}-queue".encode(), os.O_RDONLY)
    if queue >= 0:
        os.close(queue)
        found.append("a queue")
    return found


def _remove_shared() -> None:
    libc = ctypes.CDLL(None)
    libc.shmctl(libc.shmget(KEY, 0, 0), 0, None)
    libc.semctl(libc.semget(KEY, 0, 0), 0, 0)
    libc.msgctl(libc.msgget(KEY, 0), 0, None)
    libc.mq_unlink(f"/{NAME}-queue".encode())
    for name in os.listdir("/dev/shm"):
        if name.startswith(f"{NAME}-"):
            os.unlink(f"/dev/shm/{name}")


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid() and state != "Z":
                found.append(int(stat.parent.name))
    return found


def forbid_namespaces() -> None:
    """What an unprivileged container does: no namespaces and no mounts for this process and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    machine = os.uname().machine
    refused = {"x86_64": (272, 308, 165, 442, 428, 430, 155), "aarch64": (97, 268, 40, 442, 428, 430, 41)}[machine]
    clone = {"x86_64": 56, "aarch64": 220}[machine]
    program = [(0x20, 0, 0, 0)]
    for number in refused:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1)]
    program += [(0x15, 0, 1, 435), (0x06, 0, 0, 0x00050000 | 38)]
    program += [(0x15, 0, 3, clone), (0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), (0x06, 0, 0, 0x00050000 | 1)]
    program.append((0x06, 0, 0, 0x7FFF0000))
    code = b"".join(struct.pack("HBBI", *one) for one in program)
    kept = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(kept)), 16)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, head, 0, 0) == 0, os.strerror(ctypes.get_errno())
    assert libc.unshare(0x10000000) == -1
