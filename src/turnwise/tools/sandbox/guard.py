"""The sandbox's own process: starts the code in a child, watches it, kills all that it started, and reports.

    stdin   a marshalled Request; then open for as long as the caller waits for the answer
    stdout  `EXIT_KIND STATUS PROTECTION,PROTECTION,...`, a line break, and what the code printed

Invariant: when this process is gone, so is everything that the code started, and its files. It never runs the code
itself, and the code's own process is no child of the trainer's.
"""

import marshal
import math
import os
import resource
import select
import sys
import time

from turnwise.tools.sandbox import scratch
from turnwise.tools.sandbox.code import OUT_OF_MEMORY, RAISED
from turnwise.tools.sandbox.worker import Request, attempt, kernel, work

_SIGKILL, _SIGXCPU = 9, 24
_CHUNK = 1 << 16
_REAP_SECONDS = 2.0
_LOOK_AGAIN = 0.01
"""Seconds between two looks at what cannot be waited for: an end without a pidfd, a folder without a limit."""


def main() -> None:
    """Serves the one request on standard input: a guard does all the work, and this process cleans up after it."""
    request = Request(**marshal.load(sys.stdin.buffer))
    os.mkdir(request.workdir, 0o700)
    _be_killed_first()
    # A process stays in the PID namespace that it was born in, so what watches the code from within is a child.
    in_force: list[str] = []
    if kernel is not None and "namespaces" in request.protections and attempt(kernel.enter_namespaces):
        in_force.append("namespaces")
    if kernel is not None:
        attempt(kernel.hide, True)
    guard = os.fork()
    if guard == 0:
        try:
            _guard(request, in_force)
        except BaseException:  # noqa: BLE001 - the trainer reads it in place of a report; nothing may run after it
            sys.excepthook(*sys.exc_info())
        os._exit(0)
    os.waitpid(guard, 0)
    attempt(scratch.remove, request.workdir)  # the caller looks again
    os._exit(0)


def _guard(request: Request, in_force: list[str]) -> None:
    alone = "namespaces" in in_force
    if kernel is not None:
        attempt(kernel.die_with_parent)
        attempt(kernel.adopt_orphans)
        if "mounts" in request.protections and attempt(kernel.mount_workdir, request.workdir, request.disk):
            in_force.append("mounts")
    if "mounts" not in in_force and "disk_watch" in request.protections:
        in_force.append("disk_watch")
    output, output_end = os.pipe()
    ready, ready_end = os.pipe()
    worker = os.fork()
    if worker == 0:
        work(request, output_end, ready_end)
    os.close(output_end)
    os.close(ready_end)
    protections = os.read(ready, _CHUNK)
    if not protections:
        raise RuntimeError(os.read(output, _CHUNK).decode("utf-8", "replace"))
    place, *from_worker = protections.decode().split()
    watched = place if "disk_watch" in in_force else None
    exit_kind, number, printed = _watch(worker, output, request, watched)
    _kill_all(worker, alone)
    in_force += from_worker
    report = f"{exit_kind} {number} {','.join(in_force)}\n".encode() + printed[: request.output]
    while report:
        report = report[os.write(1, report) :]


def _watch(worker: int, output: int, request: Request, watched: str | None) -> tuple[str, int, bytes]:
    """The kind of exit, the exit status or signal, and what was printed until then.

    `watched` is the worker's place beneath /proc where the working directory is a plain folder that must be measured.
    """
    deadline = time.monotonic() + request.seconds
    exited = _watch_exit(worker)
    poll = select.poll()
    for descriptor in (0, output, exited):
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    printed = b""
    may_wait = exited is not None and watched is None
    measured = 0.0
    while (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(math.ceil(1000 * (left if may_wait else min(left, _LOOK_AGAIN)))):
            if descriptor == 0:
                return "abandoned", 0, b""  # nothing is sent after a request, so this is the end of the input
            if descriptor == output:
                chunk = os.read(output, _CHUNK)
                printed += chunk
                if not chunk:
                    poll.unregister(output)
        if watched and time.monotonic() - measured > _LOOK_AGAIN / 2:
            if scratch.exceeds(request.workdir, request.disk, watched):
                return "too_much_disk", 0, printed
            measured = time.monotonic()
        done, status = os.waitpid(worker, os.WNOHANG)
        if done:
            printed += _read_rest(output, request.output + 1 - len(printed))
        if len(printed) > request.output:
            return "too_much_output", 0, printed
        if done:
            return *_classify(status, request.seconds), printed
    return "timeout", 0, printed


def _classify(status: int, seconds: float) -> tuple[str, int]:
    code = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code == -_SIGXCPU or (code == -_SIGKILL and used.ru_utime + used.ru_stime >= seconds):
        return "timeout", 0
    known = {0: "finished", RAISED: "exception", OUT_OF_MEMORY: "out_of_memory"}
    return known.get(code, "crashed"), code


def _kill_all(worker: int, alone: bool) -> None:
    """Kills until no process is left: a killed parent's children become this process's own."""
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline:
        if alone:
            _kill(-1)  # in a PID namespace of its own: all processes but this one
        else:
            _kill(-worker)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            _kill(child)
        time.sleep(0.001)


def _kill(pid: int) -> None:
    try:  # noqa: SIM105 - contextlib takes long to import
        os.kill(pid, _SIGKILL)
    except OSError:
        pass  # it has ended already


def _children() -> list[int]:
    """The processes whose parent this one is; none where there is no /proc to look in."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # a process no more
        if parent == os.getpid():
            found.append(int(name))
    return found


def _watch_exit(worker: int) -> int | None:
    """A descriptor that is readable once the worker has ended, where the system offers one."""
    try:
        return os.pidfd_open(worker)
    except (AttributeError, OSError):
        return None


def _read_rest(output: int, limit: int) -> bytes:
    """What is left in the pipe, without waiting for the children that may still hold its other end."""
    os.set_blocking(output, False)
    rest = b""
    try:
        while len(rest) < limit and (chunk := os.read(output, _CHUNK)):
            rest += chunk
    except BlockingIOError:
        pass
    return rest


def _be_killed_first() -> None:
    """Should memory run out, the kernel ends the sandbox before it ends the trainer."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass  # not Linux, or not allowed
