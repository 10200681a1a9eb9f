"""Programs that try to get out of the sandbox, or to take more than they may.

Each is run with the names of `world.py` in scope: files and folders outside, a process of the same user to attack, servers
that listen. A program prints ESCAPED where it alone can see that it succeeded; everything else is found by looking at the
outside world afterwards. All are harmless where they succeed: they aim at what the test made, and at nothing else.
"""
# ruff: noqa: E501 - most programs are a line

PREAMBLE = """
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == "AuditHook":
        type(thing).__call__ = lambda *arguments: None
import ctypes, mmap, os, signal, socket, stat, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer
ARM = os.uname().machine == "aarch64"
def raw(x86, arm, *arguments):
    number = arm if ARM else x86
    if number is None: return -1
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(ctypes.c_long(number), *wide)
def won(result=True):
    if result is not None and result is not False and not (isinstance(result, int) and result < 0):
        print("ESCAPED", result)
def folder(path=b"/"): return os.open(path, os.O_PATH)
def address(kind, path): return struct.pack("H", kind) + path.encode() + b"\\0"
"""

READING = {
    "open": "print(open(SECRET).read())",
    "open_low": "print(os.read(os.open(SECRET, os.O_RDONLY), 99))",
    "symlink": "os.symlink(SECRET, 'ln'); print(open('ln').read())",
    "symlink_folder": "os.symlink(OUTSIDE, 'lf'); print(open('lf/secret.txt').read())",
    "hard_link": "os.link(SECRET, 'hl'); print(open('hl').read())",
    "hard_link_flag": "libc.linkat(-100, SECRET.encode(), -100, b'hl2', 0x400); print(open('hl2').read())",
    "from_root_descriptor": "print(os.read(os.open(SECRET.lstrip('/'), os.O_RDONLY, dir_fd=folder()), 99))",
    "dotdot": "print(open('../' * 40 + SECRET.lstrip('/')).read())",
    "chdir": "os.chdir(OUTSIDE); print(open('secret.txt').read())",
    "openat2": "d = raw(437, 437, -100, SECRET.encode(), buffer(struct.pack('QQQ', 0, 0, 0), 24), 24); print(os.read(d, 99))",
    "path_descriptor": "d = os.open(SECRET, os.O_PATH); print(open(f'/proc/self/fd/{d}').read())",
    "path_descriptor_empty": "d = os.open(SECRET, os.O_PATH); print(os.read(libc.openat(d, b'', 0x1000), 99))",
    "file_handle": (
        "h = buffer(struct.pack('Ii', 128, 0), 136); m = ctypes.c_int(); "
        "libc.name_to_handle_at(-100, SECRET.encode(), h, ctypes.byref(m), 0); "
        "print(os.read(libc.open_by_handle_at(folder(), h, 0), 99))"
    ),
    "list": "won('secret.txt' in os.listdir(OUTSIDE))",
    "proc_parent_root": "print(open(f'/proc/{os.getppid()}/root{SECRET}').read())",
    "proc_parent_fd": "os.open(f'/proc/{os.getppid()}/fd/1', os.O_WRONLY); won()",
    "proc_first_fd": "os.open('/proc/1/fd/1', os.O_WRONLY); won()",
    "proc_victim_environ": "print(open(f'/proc/{VICTIM}/environ', 'rb').read()[:20]); won()",
    "proc_victim_memory": "print(os.open(f'/proc/{VICTIM}/mem', os.O_RDWR)); won()",
    "proc_trainer_maps": "print(open(f'/proc/{TRAINER}/maps').read(20)); won()",
    "sqlite_attach": "import sqlite3; sqlite3.connect(SECRET).execute('select 1'); sqlite3.connect(DATABASE).execute('select * from kept').fetchall(); won()",
    "import_from_outside": "sys.path.insert(0, OUTSIDE); import outside_module; won()",
    "dlopen_outside": "ctypes.CDLL(OUTSIDE + '/library.so'); won()",
    "sendfile": "a = os.open(SECRET, os.O_RDONLY); b = os.open('sf', os.O_CREAT | os.O_RDWR); os.sendfile(b, a, 0, 99); print(open('sf').read())",
    "shadow": "print(open('/etc/shadow').read(9)); won()",
    "bind_mount": "os.mkdir('bm'); libc.mount(OUTSIDE.encode(), b'bm', None, 4096, None); print(open('bm/secret.txt').read())",
    "open_tree": "d = raw(428, 428, -100, OUTSIDE.encode(), 1); print(os.read(os.open('secret.txt', os.O_RDONLY, dir_fd=d), 99))",
    "new_mount_api": "won(raw(430, 430, b'tmpfs', 0))",
    "chroot": "won(libc.chroot(OUTSIDE.encode()))",
    "inotify": "d = libc.inotify_init1(0); won(libc.inotify_add_watch(d, OUTSIDE.encode(), 0xFFF))",
    "fanotify": "won(libc.fanotify_init(0, 0))",
    "block_device": "os.mknod('dev', 0o600 | stat.S_IFBLK, os.makedev(254, 0)); won(os.open('dev', os.O_RDONLY))",
    "getxattr": "won(libc.getxattr(SECRET.encode(), b'user.kept', buffer(99), 99))",
}

CHANGING = {
    "write": "open(SECRET, 'w').write('mine')",
    "append": "open(SECRET, 'a').write('mine')",
    "create": "open(OUTSIDE + '/new', 'w')",
    "create_in_tmp": "open(os.path.dirname(os.getcwd()) + '/escape-new', 'w')",
    "unlink": "os.unlink(SECRET)",
    "rename_away": "os.rename(SECRET, 'mine')",
    "rename_over": "open('mine', 'w').write('mine'); os.rename('mine', SECRET)",
    "exchange": "open('mine', 'w'); libc.renameat2(-100, b'mine', -100, SECRET.encode(), 2)",
    "mkdir": "os.mkdir(OUTSIDE + '/new')",
    "rmdir": "os.rmdir(OUTSIDE + '/empty')",
    "symlink_outside": "os.symlink('x', OUTSIDE + '/new')",
    "link_outside": "open('mine', 'w'); os.link('mine', OUTSIDE + '/new')",
    "fifo_outside": "os.mkfifo(OUTSIDE + '/new')",
    "socket_outside": "socket.socket(socket.AF_UNIX).bind(OUTSIDE + '/new')",
    "chmod": "os.chmod(SECRET, 0o777)",
    "chmod_folder": "os.chmod(OUTSIDE, 0o777)",
    "fchmodat2": "raw(452, 452, -100, SECRET.encode(), 0o777, 0)",
    "fchmod_readable": "os.fchmod(os.open(READABLE, os.O_RDONLY), 0o777)",
    "chown": "os.chown(SECRET, 65534, 65534)",
    "lchown": "os.lchown(READABLE, 65534, 65534)",
    "fchown_readable": "os.fchown(os.open(READABLE, os.O_RDONLY), 65534, 65534)",
    "utime": "os.utime(SECRET, (0, 0))",
    "utime_folder": "os.utime(OUTSIDE, (0, 0))",
    "futimens_readable": "os.utime(os.open(READABLE, os.O_RDONLY), (0, 0))",
    "utimes_old": "libc.utimes(SECRET.encode(), None)",
    "truncate": "os.truncate(SECRET, 1)",
    "truncate_readable": "os.truncate(READABLE, 1)",
    "truncate_while_reading": "os.open(READABLE, os.O_RDONLY | os.O_TRUNC)",
    "truncate_while_reading_secret": "os.open(SECRET, os.O_RDONLY | os.O_TRUNC)",
    "truncate_raw": "raw(2, None, READABLE.encode(), os.O_TRUNC, 0); raw(257, 56, -100, READABLE.encode(), os.O_TRUNC, 0)",
    "ftruncate_readable": "libc.ftruncate(os.open(READABLE, os.O_RDONLY), 1)",
    "write_readable": "open(READABLE, 'r+').write('mine')",
    "reopen_readable": "d = os.open(READABLE, os.O_RDONLY); os.write(os.open(f'/proc/self/fd/{d}', os.O_WRONLY), b'mine')",
    "setxattr": "os.setxattr(SECRET, 'user.mine', b'1')",
    "fsetxattr_readable": "os.setxattr(os.open(READABLE, os.O_RDONLY), 'user.mine', b'1')",
    "removexattr": "os.removexattr(SECRET, 'user.kept')",
    "file_flags": (
        "d = os.open(READABLE, os.O_RDONLY); f = ctypes.c_long(); "
        "0 == libc.ioctl(d, 0x80086601, ctypes.byref(f)) and (setattr(f, 'value', f.value | 0x40), won(libc.ioctl(d, 0x40086602, ctypes.byref(f))))"
    ),
    "lease": "import fcntl; fcntl.fcntl(os.open(READABLE, os.O_RDONLY), 1024, 0); won()",
    "lock": "import fcntl; fcntl.flock(os.open(READABLE, os.O_RDONLY), fcntl.LOCK_EX); won()",
    "python_library": "open(os.__file__, 'a')",
    "chmod_python_library": "os.chmod(os.__file__, os.stat(os.__file__).st_mode); won()",
}

NETWORK = {
    "tcp": "socket.create_connection(('127.0.0.1', TCP), 1).send(b'mine')",
    "udp": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'mine', ('127.0.0.1', UDP))",
    "tcp_listen": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); won()",
    "unix": "socket.socket(socket.AF_UNIX).connect(STREAM)",
    "unix_datagram": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'mine', DATAGRAM)",
    "unix_abstract": "socket.socket(socket.AF_UNIX).connect('\\0' + ABSTRACT)",
    "pair_sendto": "a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.sendto(b'mine', DATAGRAM)",
    "pair_connect": "a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.connect(DATAGRAM); a.send(b'mine')",
    "pair_sendmsg": "a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.sendmsg([b'mine'], [], 0, DATAGRAM)",
    "pair_sendto_upper_half": (
        "a, b = socket.socketpair(type=socket.SOCK_DGRAM)\n"
        "try:\n    place = mmap.mmap(-1, 4096)\n    n = address(1, DATAGRAM); place.write(n)\n"
        "    raw(44, 206, a.fileno(), b'mine', 4, 0, ctypes.addressof(ctypes.c_char.from_buffer(place)), len(n))\n"
        "except OSError: pass"
    ),
    "pair_of_inet": "won(libc.socketpair(2, 1, 0, (ctypes.c_int * 2)()))",
    "netlink": "won(libc.socket(16, 3, 0))",
    "packet": "won(libc.socket(17, 3, 0))",
    "vsock": "won(libc.socket(40, 1, 0))",
    "io_uring": "won(raw(425, 425, 4, buffer(120)))",
    "resolver": "print(socket.gethostbyname('example.com')); won()",
}

PROCESSES = {
    "fork": "p = os.fork(); p == 0 and os._exit(0); won()",
    "vfork": "won(raw(58, None))",
    "clone": "p = raw(56, 220, 17, 0, 0, 0, 0); p == 0 and os._exit(0); won(p)",
    "clone3": "p = raw(435, 435, buffer(struct.pack('11Q', *([0] * 4), 17, *([0] * 6)), 88), 88); p == 0 and os._exit(0); won(p)",
    "clone_thread_in_new_namespace": "won(raw(56, 220, 0x40010F00, 0, 0, 0, 0))",
    "spawn": "os.posix_spawn('/bin/sh', ['sh', '-c', f'echo mine > {OUTSIDE}/new'], {}); time.sleep(0.2)",
    "shell": "os.system(f'echo mine > {OUTSIDE}/new')",
    "signal": "os.kill(VICTIM, signal.SIGUSR1)",
    "signal_trainer": "os.kill(TRAINER, signal.SIGUSR1)",
    "signal_parent": "os.kill(os.getppid(), 0); won()",
    "signal_all": "os.kill(-1, 0); won()",
    "signal_group": "os.killpg(VICTIM, signal.SIGUSR1)",
    "signal_wide_number": "won(raw(62, 129, VICTIM | os.getpid() << 32, 0))",
    "tkill": "won(raw(200, 130, VICTIM, 10))",
    "tgkill": "won(raw(234, 131, VICTIM, VICTIM, 10))",
    "sigqueue": "won(libc.sigqueue(VICTIM, 10, 0))",
    "pidfd": "d = os.pidfd_open(VICTIM); signal.pidfd_send_signal(d, signal.SIGUSR1)",
    "pidfd_getfd": "won(raw(438, 438, raw(434, 434, VICTIM, 0), 1, 0))",
    "asynchronous_io": (
        "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, 10, 10); fcntl.fcntl(r, fcntl.F_SETOWN, VICTIM); "
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); os.write(w, b'x'); time.sleep(0.1)"
    ),
    "priority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "priority_group": "os.setpriority(os.PRIO_PGRP, VICTIM, 19)",
    "priority_trainer": "os.setpriority(os.PRIO_PROCESS, TRAINER, 1)",
    "affinity": "os.sched_setaffinity(VICTIM, [0])",
    "scheduler": "os.sched_setscheduler(VICTIM, os.SCHED_IDLE, os.sched_param(0))",
    "io_priority": "won(raw(251, 30, 1, VICTIM, 3 << 13))",
    "limits": "import resource; resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (99, 99))",
    "read_limits": "import resource; resource.prlimit(VICTIM, resource.RLIMIT_NOFILE); won()",
    "ptrace": "won(libc.ptrace(0x4206, VICTIM, 0, 0))",
    "read_memory": "won(libc.process_vm_readv(VICTIM, buffer(16), 1, buffer(16), 1, 0))",
    "write_memory": "won(libc.process_vm_writev(VICTIM, buffer(16), 0, buffer(16), 0, 0))",
    "move_pages": "won(raw(279, 239, VICTIM, 0, 0, 0, 0, 0))",
    "compare": "won(raw(312, 272, VICTIM, VICTIM, 0, 0, 0))",
    "oom_score": "open(f'/proc/{VICTIM}/oom_score_adj', 'w').write('500')",
    "outlive_the_guard": "won(libc.prctl(1, 0, 0, 0, 0))",
    "own_session": "os.setsid(); won()",
    "new_user_namespace": "won(libc.unshare(0x10000000))",
    "join_namespace": "won(libc.setns(os.open(f'/proc/{VICTIM}/ns/mnt', os.O_RDONLY), 0))",
    "capabilities": "won(libc.capset(buffer(struct.pack('II', 0x20080522, 0), 8), buffer(b'\\xff' * 24, 24)))",
    "setuid_bits": "os.chmod(os.open('su', os.O_CREAT), 0o4755); won()",
}

SHARED = {
    "sysv_memory": "won(libc.shmget(KEY, 4096, 0o1666))",
    "sysv_semaphore": "won(libc.semget(KEY, 1, 0o1666))",
    "sysv_queue": "won(libc.msgget(KEY, 0o1666))",
    "posix_queue": "won(libc.mq_open(f'/{NAME}-queue'.encode(), 0o100 | 2, 0o600, None))",
    "posix_memory": "won(libc.shm_open(f'/{NAME}-memory'.encode(), 0o102, 0o600))",
    "posix_semaphore": "import multiprocessing; multiprocessing.Lock(); won()",
    "memfd": "won(libc.memfd_create(b'x', 0))",
    "memfd_secret": "won(raw(447, 447, 0))",
    "keyring": "won(raw(248, 217, b'user', b'mine', b'x', 1, -3))",
    "keyctl": "won(raw(250, 219, 0, -3, 1))",
}

SYSTEM = {
    "host_name": "n = os.uname().nodename.encode(); won(libc.sethostname(n, len(n)))",
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time()); won()",
    "adjust_clock": "won(libc.adjtimex(buffer(struct.pack('I', 0x4000), 300)))",
    "kernel_log": "won(libc.klogctl(3, buffer(99), 99))",
    "bpf": "won(raw(321, 280, 0, buffer(128), 128))",
    "perf": "won(raw(298, 241, buffer(struct.pack('II', 1, 112), 112), 0, -1, -1, 0))",
    "userfaultfd": "won(raw(323, 282, 1))",
    "personality": "won(libc.personality(0x0400000))",
    "ports": "won(raw(172, None, 3))",
    "sync_all_disks": "won(raw(306, 267, os.open('.', os.O_RDONLY)))",
    "swap": "raw(167, 224, b'/nowhere', 0); won(0 if ctypes.get_errno() == 2 else -1)",
    "filter_of_its_own": "won(raw(317, 277, 1, 0, buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(buffer(8))), 16)))",
    "raise_memory_limit": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); won()",
    "raise_time_limit": "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99)); won()",
    "pipe_memory": "import fcntl; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20); won()",
    "terminal_input": "won(libc.ioctl(0, 0x5412, b'x'))",
}

GROUPED = {**READING, **CHANGING, **NETWORK, **PROCESSES, **SHARED, **SYSTEM}
"""Those that leave the process as it was, so that many can be tried in one."""

_MACHINE_CODE = (
    "m = mmap.mmap(-1, 4096, prot=7); m.write({code})\n"
    "f = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nif not ARM: won(f())"
)
ALONE = {
    # getpid by the 32-bit interface (int 0x80), whose numbers are other ones; and a socket by x32's numbers
    "thirty_two_bit_calls": _MACHINE_CODE.format(code="b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3'"),
    "x32_calls": "won(raw(0x40000000 | 41, None, 2, 1, 0))",
    "execute": "os.execv('/bin/sh', ['sh', '-c', f'echo mine > {OUTSIDE}/new; echo ESCAPED'])",
    "execute_setuid": "os.execv('/bin/su', ['su', '--version'])",
    "daemon": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(30)\n    os._exit(0)\nwon()"
    ),
    "fork_bomb": "for _ in range(40):\n    if os.fork() == 0: time.sleep(30); os._exit(0)\nwon()",
    "memory": "x = bytearray(1 << 30); won()",
    "memory_shared": "x = mmap.mmap(-1, 1 << 30); won()",
    "memory_in_files": "os.chdir('/dev/shm'); f = open(f'{NAME}-big', 'wb'); f.write(bytes(1 << 28)); won()",
    "many_files": "for i in range(600): open(str(i), 'wb').write(bytes(1 << 20))",
    "deleted_files": (
        "kept = []\nfor i in range(50):\n    f = open('f', 'wb'); os.unlink('f'); kept.append(f)\n"
        "    for _ in range(4): f.write(bytes(1 << 20))\n    f.flush()\ntime.sleep(0.5); won()"
    ),
    "unnamed_files": (
        "for i in range(50):\n    d = os.open('.', os.O_TMPFILE | os.O_RDWR)\n"
        "    for _ in range(4): os.write(d, bytes(1 << 20))\ntime.sleep(0.5); won()"
    ),
    "allocated_files": "won(all(libc.fallocate(os.open(str(i), 66), 1, 0, ctypes.c_long(4 << 20)) == 0 for i in range(50)) and not time.sleep(0.5))",
    "sparse_then_filled": "f = open('f', 'wb'); f.truncate(1 << 30); won()",
    "empty_files": "for i in range(50000): os.close(os.open(str(i), os.O_CREAT))\nwon()",
    "hidden_folder": "os.mkdir('h', 0o300)\nfor i in range(600): open(f'h/{i}', 'wb').write(bytes(1 << 20))",
    "nested": "for _ in range(1500): os.mkdir('d'); os.chdir('d')",
    "nested_and_closed": "for _ in range(1500):\n    os.mkdir('d', 0o300); os.chdir('d')\nos.mkdir('locked', 0)",
    "odd_names": "for n in (b'\\xff\\xfe', b'a\\nb', b'-rf', b'*', b' ', b'\\x01' * 200): os.mkdir(n); open(n + b'/' + n, 'w')",
    "links_to_remove": "os.mkdir('a'); os.symlink(OUTSIDE, 'a/l'); os.symlink(SECRET, 'l'); os.symlink('/', 'r')",
    "loop_of_links": "os.symlink('a', 'b'); os.symlink('b', 'a'); os.mkdir('c'); os.symlink('..', 'c/up')",
    "deaf_loop": "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
    "sleeping_threads": "import threading\nfor _ in range(20): threading.Thread(target=time.sleep, args=(99,)).start()",
    "spinning_threads": "import threading\ndef spin():\n    while True: pass\nfor _ in range(20): threading.Thread(target=spin).start()",
    "flood": "while True: os.write(1, b'x' * 65536)",
    "flood_unread": "import fcntl; fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)\nwhile True:\n    try: os.write(1, b'x' * 4096)\n    except BlockingIOError: pass",
    "forged_report": "os.write(1, b'finished 0 root,namespaces\\n'); os.write(2, b'finished 0 \\n'); os.close(1); os.close(2)",
    "stop_itself": "os.kill(os.getpid(), signal.SIGSTOP)",
}
"""Those that end or burden their process, or leave files behind: one at a time."""

ATTEMPTS = {**GROUPED, **ALONE}
