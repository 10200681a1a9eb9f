"""The system calls that code in the sandbox may make: an allow-list, as a seccomp filter; all others are refused.

Allowed are files through descriptors and paths (which Landlock or mounts confine), memory, time, threads and signals of
the process itself. Refused by absence: sockets, programs, other processes, their priorities, CPUs and signals; modes,
owners and times of files; `truncate` by path, which Landlock before its third version does not see; shared memory,
semaphores and queues of System V and POSIX; keys, mounts, namespaces, io_uring, and what later kernels add.

Invariant: an allowed call reaches nothing outside the process except through a path or a descriptor. Those of which
only some arguments are harmless stand in `_conditions`; flags that lie in memory cannot be seen, so such calls do not
exist.
"""

import errno
import struct
from _collections_abc import Sequence

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""A machine's column in the tables below and its AUDIT_ARCH."""

_ALLOWED = {
    # name: its number on x86_64 and on aarch64, or None where it does not exist; the most frequent first
    "read": (0, 63),
    "write": (1, 64),
    "futex": (202, 98),
    "close": (3, 57),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "stat": (4, None),
    "lstat": (6, None),
    "statx": (332, 291),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "msync": (26, 227),
    "brk": (12, 214),
    # files
    "creat": (85, None),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "sendfile": (40, 71),
    "copy_file_range": (326, 285),
    "ftruncate": (77, 46),
    "fadvise64": (221, 223),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "umask": (95, 166),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "close_range": (436, 436),
    # waiting
    "pipe": (22, None),
    "pipe2": (293, 59),
    "eventfd2": (290, 19),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "recvfrom": (45, 207),
    "shutdown": (48, 210),
    "getsockopt": (55, 209),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    # time
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "alarm": (37, None),
    "pause": (34, None),
    # the process itself
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "set_tid_address": (218, 96),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "getcpu": (309, 168),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getpgrp": (111, None),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpriority": (140, 141),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "uname": (63, 160),
}
_ABSENT = {
    # numbers as above, and the error after which libc does the same by other calls
    # Their flags lie in memory, where no filter sees them.
    "clone3": (435, 435, errno.ENOSYS),
    "openat2": (437, 437, errno.ENOSYS),
    # It takes as much of the disk as it likes at once; writing takes time, in which the guard looks.
    "fallocate": (285, 47, errno.EOPNOTSUPP),
}

_CLONE_THREAD, _CLONE_NEW = 0x00010000, 0x7E020000
"""A thread of this process; a new namespace of any kind."""
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_AF_UNIX = 1
_HARMLESS_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_HARMLESS_FCNTLS = (*range(8), 36, 37, 38, 1030, 1032)
"""Copies, flags and locks; F_GETPIPE_SZ. F_SETOWN would send signals, F_SETLEASE would make others wait for files."""
_HARMLESS_PRCTLS = (15, 16, 0x53564D41)
"""The names of threads and of memory. PR_SET_PDEATHSIG would let the code outlive its guard."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in seccomp_data
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000

_Instruction = tuple[int, int, int, int]
_ACCEPT: _Instruction = (_RETURN, 0, 0, _ALLOW)
_REFUSE: _Instruction = (_RETURN, 0, 0, _ERRNO | errno.EPERM)


def write_filter(machine: str, pid: int) -> bytes:
    """The filter for process `pid` of such a machine, as the kernel reads it; OSError for an unknown machine."""
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is known for {machine}")
    column, architecture = MACHINES[machine]
    # Calls of another architecture or of the x32 interface have other numbers: Python never makes them.
    kill: _Instruction = (_RETURN, 0, 0, _KILL_PROCESS)
    program: list[_Instruction] = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, architecture), kill, (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), kill]
    for name in _ALLOWED:
        if (number := _ALLOWED[name][column]) is not None:
            program += [(_EQUAL, 0, 1, number), _ACCEPT]
    for name in _ABSENT:
        program += [(_EQUAL, 0, 1, _ABSENT[name][column]), (_RETURN, 0, 0, _ERRNO | _ABSENT[name][2])]
    for numbers, tests in _conditions(pid):
        if (number := numbers[column]) is not None:
            block = [instruction for test in tests for instruction in test]
            program += [(_EQUAL, 0, len(block) + 1, number), *block, _ACCEPT]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*program, _REFUSE])


def _conditions(pid: int) -> Sequence[tuple[tuple[int | None, int | None], Sequence[list[_Instruction]]]]:
    """The calls that are allowed with some arguments only: numbers as above, and the tests that all must pass."""
    return (
        # Reading a file while truncating it is seen as reading alone by Landlock before its third version.
        ((2, None), [_not_masked(1, _O_ACCMODE | _O_TRUNC, _O_TRUNC)]),  # open
        ((257, 56), [_not_masked(2, _O_ACCMODE | _O_TRUNC, _O_TRUNC)]),  # openat
        ((56, 220), [_has(0, _CLONE_THREAD), _lacks(0, _CLONE_NEW)]),  # clone
        ((62, 129), [_one_of(0, (pid,))]),  # kill
        ((234, 131), [_one_of(0, (pid,))]),  # tgkill
        ((302, 261), [_one_of(0, (0, pid)), _null(2)]),  # prlimit64, to ask and not to set
        ((16, 29), [_one_of(1, _HARMLESS_IOCTLS, errno.ENOTTY)]),  # ioctl
        ((72, 25), [_one_of(1, _HARMLESS_FCNTLS)]),  # fcntl
        ((157, 167), [_one_of(0, _HARMLESS_PRCTLS)]),  # prctl
        # A pair of local sockets is how asyncio wakes itself; with an address, sendto would reach sockets of others.
        ((53, 199), [_one_of(0, (_AF_UNIX,))]),  # socketpair
        ((44, 206), [_null(4)]),  # sendto
    )


def _load(argument: int, *, upper: bool = False) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + 4 * upper)


def _one_of(argument: int, values: Sequence[int], error: int = errno.EPERM) -> list[_Instruction]:
    tests: list[_Instruction] = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_load(argument), *tests, (_RETURN, 0, 0, _ERRNO | error)]


def _null(argument: int) -> list[_Instruction]:
    halves = ([_load(argument, upper=upper), (_EQUAL, 1, 0, 0), _REFUSE] for upper in (False, True))
    return [instruction for half in halves for instruction in half]


def _not_masked(argument: int, mask: int, value: int) -> list[_Instruction]:
    return [_load(argument), (_AND, 0, 0, mask), (_EQUAL, 0, 1, value), _REFUSE]


def _has(argument: int, bit: int) -> list[_Instruction]:
    return [_load(argument), (_ANY_BIT, 1, 0, bit), _REFUSE]


def _lacks(argument: int, bits: int) -> list[_Instruction]:
    return [_load(argument), (_ANY_BIT, 0, 1, bits), _REFUSE]
