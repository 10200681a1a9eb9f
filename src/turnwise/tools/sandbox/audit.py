"""Refuses, inside Python and with a message, what code in the sandbox may not do.

It gives the kernel's refusals a reason and is never counted as a protection: code that looks for the hook finds it and
takes it apart. Invariant: on every machine the same code gets the same refusal.
"""

import os

_AF_UNIX = 1
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_NO_NETWORK = "there is no network here"
_NO_PROCESSES = "no other process can be started here"
_NO_SIGNALS = "signals can be sent to this process alone"
_NO_FOREIGN = "foreign functions (ctypes) are not available here"

_NO_METADATA = (
    "modes, owners, times and attributes of files cannot be changed here; shutil.copyfile copies without them"
)

_REFUSED = {
    "os.chmod": _NO_METADATA,
    "os.chown": _NO_METADATA,
    "os.removexattr": _NO_METADATA,
    "os.setxattr": _NO_METADATA,
    "os.utime": _NO_METADATA,
    "os.exec": _NO_PROCESSES,
    "os.fork": _NO_PROCESSES,
    "os.forkpty": _NO_PROCESSES,
    "os.posix_spawn": _NO_PROCESSES,
    "os.spawn": _NO_PROCESSES,
    "os.system": _NO_PROCESSES,
    "pty.spawn": _NO_PROCESSES,
    "subprocess.Popen": _NO_PROCESSES,
    "os.killpg": _NO_SIGNALS,
    "resource.prlimit": "the limits of this process cannot be changed",
    "resource.setrlimit": "the limits of this process cannot be changed",
    "socket.bind": _NO_NETWORK,
    "socket.connect": _NO_NETWORK,
    "socket.getaddrinfo": _NO_NETWORK,
    "socket.gethostbyaddr": _NO_NETWORK,
    "socket.gethostbyname": _NO_NETWORK,
    "socket.getnameinfo": _NO_NETWORK,
    "socket.sendmsg": _NO_NETWORK,
    "socket.sendto": _NO_NETWORK,
}
_READS = ("os.listdir", "os.listxattr", "os.getxattr", "os.scandir")
_CHANGES = {
    # event: which of its arguments are paths that it changes
    "os.link": (0, 1),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "sqlite3.connect": (0,),
}


class AuditHook:
    """For `sys.addaudithook`: PermissionError for the network, for other processes and for files elsewhere."""

    def __init__(self, readable: list[str], writable: list[str]) -> None:
        self._writable = _roots(writable)
        self._readable = _roots(readable) + self._writable
        self._pid = os.getpid()

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            self._check(path, changes=isinstance(flags, int) and bool(flags & _WRITES))
        elif event in _REFUSED:
            raise PermissionError(_REFUSED[event])
        elif event in _CHANGES:
            for position in _CHANGES[event]:
                self._check(arguments[position], changes=True)
        elif event in _READS:
            self._check(arguments[0], changes=False)
        elif event == "os.truncate" and not isinstance(arguments[0], int):
            raise PermissionError("open the file and truncate it: by its path it cannot be done here")
        elif event == "os.kill" and arguments[0] != self._pid:
            raise PermissionError(_NO_SIGNALS)
        elif event == "socket.__new__" and arguments[1] != _AF_UNIX:
            # A pair of local sockets is how asyncio wakes itself.
            raise PermissionError(_NO_NETWORK)
        elif event.startswith("ctypes."):
            raise PermissionError(_NO_FOREIGN)

    def _check(self, path: object, *, changes: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a file that is open already, or the working directory
        real = os.path.realpath(os.fsdecode(path))
        roots = self._writable if changes else self._readable
        if not any(real == root or real.startswith(f"{root}/") for root in roots):
            what = "changed" if changes else "read"
            raise PermissionError(f"only files in the working directory can be {what}, and {real} is not one")


def _roots(paths: list[str]) -> tuple[str, ...]:
    return tuple({os.path.realpath(path) for path in paths})
