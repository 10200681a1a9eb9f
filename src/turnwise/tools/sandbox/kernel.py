"""The restrictions that Linux can put on a process: namespaces, read-only mounts, Landlock, a seccomp filter.

Invariant: each function puts its protection in force or raises OSError. All of them work without privileges where the
kernel allows it, bind every later child too, and cannot be undone. Imported by the sandbox's own process alone, whose
start is part of every call: so it imports next to nothing.
"""

import ctypes
import errno
import os
import stat
import struct
import sys

if sys.platform != "linux":
    raise ImportError("these calls exist on Linux alone")

_libc = ctypes.CDLL(None, use_errno=True)

_CLONE_THREAD = 0x00010000
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SIGKILL = 9

_MS_NOSUID, _MS_NODEV, _MS_RECURSIVE, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
_SYS_MOUNT_SETATTR = 442
_MAX_FILES = 4096

_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = 0b111 | 1 << 14
"""Execute, write, read and truncate: the rights on what is not a folder."""
_RIGHTS_BY_VERSION = (13, 14, 15, 15, 16)
"""How many rights on files the versions of Landlock know, from the first on; those after the last know as many."""

_CAPABILITY_VERSION = 0x20080522

_REFUSED = {
    # name: its number on x86_64 and on aarch64, or None where it does not exist
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # The memory that these give is not counted by the limit on a process's memory.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "mq_open": (240, 180),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""A machine's column in `_REFUSED` and its AUDIT_ARCH."""
_CLONE, _CLONE3, _KILL, _TGKILL, _PRLIMIT64 = (56, 220), (435, 435), (62, 129), (234, 131), (302, 261)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_X32 = 0x40000000


def die_with_parent() -> None:
    """The kernel kills this process as soon as its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, so that none is lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


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
    options = f"size={size},nr_inodes={_MAX_FILES},mode=0700"
    _mount(b"tmpfs", os.fsencode(folder), b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode())
    _set_mount(b"/", _AT_RECURSIVE, set_=_MOUNT_ATTR_RDONLY)
    _set_mount(os.fsencode(folder), 0, clear=_MOUNT_ATTR_RDONLY)


def drop_privileges() -> None:
    """No capabilities, and no way to get any."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = ctypes.create_string_buffer(struct.pack("II", _CAPABILITY_VERSION, 0), 8)
    _check(_libc.capset(header, ctypes.create_string_buffer(24)))


def restrict_files(readable: list[str], writable: list[str]) -> None:
    """Landlock: what is not beneath one of these can be neither read nor written; needs `drop_privileges`."""
    version = _system_call(_SYS_LANDLOCK_CREATE_RULESET, None, 0, 1)
    every = (1 << _RIGHTS_BY_VERSION[min(version, len(_RIGHTS_BY_VERSION)) - 1]) - 1
    attributes = ctypes.create_string_buffer(struct.pack("Q", every), 8)
    ruleset = _system_call(_SYS_LANDLOCK_CREATE_RULESET, attributes, 8, 0)
    for path in readable:
        _allow(ruleset, path, _READ_FILE | _READ_DIR)
    for path in writable:
        _allow(ruleset, path, every)
    _system_call(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def filter_system_calls() -> None:
    """Seccomp: no sockets, no processes (threads are allowed), no access to other processes, no uncounted memory."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is known for {machine}")
    program = _write_filter(*_MACHINES[machine], pid=os.getpid())
    instructions = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.create_string_buffer(head, 16))


def _write_filter(column: int, machine: int, *, pid: int) -> bytes:
    """A program for the kernel's packet filter, in which every test is followed by what it returns."""
    refuse, allow = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)
    program = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, machine),
        refuse,
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        refuse,
    ]
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), refuse]
    # The flags of clone3 lie in memory, where no filter sees them; where it does not exist, libc falls back to clone.
    program += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    allowed_first = [
        (_CLONE, (_ANY_BIT, 0, 1, _CLONE_THREAD)),
        (_KILL, (_EQUAL, 0, 1, pid)),
        (_TGKILL, (_EQUAL, 0, 1, pid)),
        (_PRLIMIT64, (_EQUAL, 0, 1, 0)),
    ]
    for numbers, test in allowed_first:
        program += [(_EQUAL, 0, 4, numbers[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT), test, allow, refuse]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*program, allow])


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
