"""The restrictions that Linux can put on a process: namespaces, read-only mounts, Landlock, a filter of system calls.

Invariant: each function puts its protection in force or raises OSError. All of them work without privileges where the
kernel allows it, bind every later child too, and cannot be undone. Imported by the sandbox's own process alone, whose
start is part of every call: so it imports next to nothing.
"""

import ctypes
import os
import stat
import struct
import sys

from turnwise.tools.sandbox.scratch import MAX_FILES
from turnwise.tools.sandbox.seccomp import write_filter

if sys.platform != "linux":
    raise ImportError("these calls exist on Linux alone")

_libc = ctypes.CDLL(None, use_errno=True)

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_SIGKILL = 9

_MS_NOSUID, _MS_NODEV, _MS_RECURSIVE, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
_SYS_MOUNT_SETATTR = 442

_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = 0b111 | 1 << 14
"""Execute, write, read and truncate: the rights on what is not a folder."""
_RIGHTS_BY_VERSION = (13, 14, 15, 15, 16)
"""How many rights on files the versions of Landlock know, from the first on; those after the last know as many."""

_CONNECT_AND_BIND, _SIGNALS_AND_SOCKETS = 0b11, 0b11
"""TCP, from the fourth version on; signals to processes outside and their abstract sockets, from the sixth on."""

_CAPABILITY_VERSION = 0x20080522


def die_with_parent() -> None:
    """The kernel kills this process as soon as its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, so that none is lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide(hidden: bool) -> None:
    """Whether other processes of the same user are kept from this one's memory and open files, also in /proc."""
    _prctl(_PR_SET_DUMPABLE, int(not hidden))


def enter_namespaces() -> None:
    """No network from here on, and later children are in a PID namespace of their own, the first as its init."""
    uid, gid = os.geteuid(), os.getegid()
    wanted = _NEW_PIDS | _NEW_NETWORK | _NEW_IPC
    try:
        _check(_libc.unshare(_NEW_USER | wanted))
    except OSError:
        # Real root needs no user namespace, and may have the rest where those are switched off.
        _check(_libc.unshare(wanted))
        return
    for file, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{file}", "w") as map_:
            map_.write(text)


def mount_workdir(folder: str, size: int) -> None:
    """Mounts all read-only but `folder`, which becomes an empty tmpfs of `size` bytes that ends with the process."""
    _check(_libc.unshare(_NEW_MOUNTS))
    _mount(b"none", b"/", None, _MS_RECURSIVE | _MS_PRIVATE, None)
    options = f"size={size},nr_inodes={MAX_FILES},mode=0700"
    _mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode())
    _set_mount(b"/", _AT_RECURSIVE, set_=_MOUNT_ATTR_RDONLY)
    _set_mount(os.fsencode(folder), 0, clear=_MOUNT_ATTR_RDONLY)


def drop_privileges() -> None:
    """No capabilities, and no way to get any."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = ctypes.create_string_buffer(struct.pack("II", _CAPABILITY_VERSION, 0), 8)
    _check(_libc.capset(header, ctypes.create_string_buffer(24)))


def restrict_files(readable: list[str], writable: list[str], newest: int | None = None) -> None:
    """Landlock: what is not beneath one of these can be neither read nor written; needs `drop_privileges`.

    Versions differ: the second knows links between folders, the third truncation, which the filter of system calls
    refuses on the first two. None knows modes, owners and times. `newest` limits the version, as an older kernel would.
    """
    version = _system_call(_SYS_LANDLOCK_CREATE_RULESET, None, 0, 1)
    version = version if newest is None else min(version, newest)
    every = (1 << _RIGHTS_BY_VERSION[min(version, len(_RIGHTS_BY_VERSION)) - 1]) - 1
    handled = [every] + [_CONNECT_AND_BIND] * (version >= 4) + [_SIGNALS_AND_SOCKETS] * (version >= 6)
    attributes = ctypes.create_string_buffer(struct.pack(f"{len(handled)}Q", *handled), 8 * len(handled))
    ruleset = _system_call(_SYS_LANDLOCK_CREATE_RULESET, attributes, 8 * len(handled), 0)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, every)
    _system_call(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def filter_system_calls() -> None:
    """Seccomp: no system calls but those that `seccomp.py` lists."""
    program = write_filter(os.uname().machine, os.getpid())
    instructions = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(head, 16))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no permission
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _FILE_RIGHTS
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
    _system_call(_SYS_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0)
    os.close(descriptor)


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), options))


def _set_mount(target: bytes, flags: int, *, set_: int = 0, clear: int = 0) -> None:
    attributes = ctypes.create_string_buffer(struct.pack("QQQQ", set_, clear, 0, 0), 32)
    _system_call(_SYS_MOUNT_SETATTR, _AT_FDCWD, target, flags, attributes, 32)


def _prctl(option: int, *arguments: "int | ctypes.Array[ctypes.c_char]") -> None:
    _check(_libc.prctl(option, *_whole(arguments + (0,) * (4 - len(arguments)))))


def _system_call(number: int, *arguments: "int | bytes | ctypes.Array[ctypes.c_char] | None") -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *_whole(arguments)))


def _whole(arguments: tuple[object, ...]) -> list[object]:
    """Integers as wide as a register, whose upper half would otherwise hold whatever was left there."""
    return [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
