"""The process that forks workers. It has no threads of its own and no torch: a fork is safe and takes milliseconds.

Invariant: a worker leads a process group of its own, and what is left of the group is killed when the worker has ended.
When the trainer is gone, so are the nursery and all workers.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import pickle
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import cast

from turnwise.envs.base import Env
from turnwise.envs.boundary import explain
from turnwise.envs.registry import make_env
from turnwise.envs.workers.pipe import TrainerPipe, WorkerPipe, to_frame
from turnwise.envs.workers.protocol import Birth, End, FromWorker, Ready, ToWorker
from turnwise.envs.workers.server import EpisodeServer, SendingHandler
from turnwise.errors import EnvError, TurnwiseError
from turnwise.tools.watchdog import watching

_ORDER = struct.Struct(">cI")
_DEATH = struct.Struct(">Ii")
_START, _KILL = b"S", b"K"
_PR_SET_PDEATHSIG = 1
_PATIENCE = 5.0
"""Seconds for the nursery to say how a worker ended."""


class LocalNursery:
    """The trainer's side: `LocalNursery(birth).start()` is a connection to a new worker of this machine."""

    def __init__(self, birth: Birth) -> None:
        self._control, theirs = socket.socketpair()
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "turnwise.envs.workers.nursery", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **own},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the business of the trainer
        )
        theirs.close()
        self._control.sendall(to_frame((birth,)))
        self._started, self._deaths = 0, dict[int, int]()

    def start(self) -> "LocalConnection":
        ours, theirs = socket.socketpair()
        self._started += 1
        try:
            socket.send_fds(self._control, [_ORDER.pack(_START, self._started)], [theirs.fileno()])
        except OSError as error:
            raise EnvError(f"env.workers: the process that starts workers is gone ({error}); try again") from None
        theirs.close()
        return LocalConnection(self, self._started, TrainerPipe(ours))

    def kill(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(_ORDER.pack(_KILL, number))

    def how_it_ended(self, number: int) -> End:
        while number not in self._deaths and select.select([self._control], [], [], _PATIENCE)[0]:
            with contextlib.suppress(OSError):
                data = self._control.recv(_DEATH.size, socket.MSG_WAITALL)
                if len(data) == _DEATH.size:
                    died, status = _DEATH.unpack(data)
                    self._deaths[died] = status
                    continue
            return End("it was lost with the process that starts workers")
        status = self._deaths.pop(number, 0)
        return End(f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}")

    def close(self) -> None:
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)


class LocalConnection:
    """One worker of this machine."""

    is_near = True

    def __init__(self, nursery: LocalNursery, number: int, pipe: TrainerPipe) -> None:
        self._nursery, self._number, self._pipe = nursery, number, pipe
        self._loop: AbstractEventLoop | None = None

    def send(self, *messages: ToWorker) -> None:
        self._pipe.send(messages)
        if self._pipe.has_unsent and self._loop is not None:
            self._loop.add_writer(self._pipe, self._flush)

    def receive(self) -> list[FromWorker]:
        return cast(list[FromWorker], self._pipe.receive())

    def wait(self, seconds: float) -> None:
        self._pipe.wait(seconds)

    def kill(self) -> None:
        self._nursery.kill(self._number)

    def how_it_ended(self) -> End:
        return self._nursery.how_it_ended(self._number)

    def watch(self, loop: AbstractEventLoop, arrived: Callable[[], None]) -> None:
        self._loop = loop
        loop.add_reader(self._pipe, arrived)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pipe)
            self._loop.remove_writer(self._pipe)
        self._pipe.close()

    def _flush(self) -> None:
        self._pipe.flush()
        if not self._pipe.has_unsent and self._loop is not None:
            self._loop.remove_writer(self._pipe)


def run_nursery(control: socket.socket) -> None:
    """Forks a worker for each order, and tells of each that has ended, until the trainer is gone."""
    (birth,) = _read_frame(control)
    workers: dict[int, int] = {}  # pid -> number
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # A scheduler may signal every process of a job: the trainer alone decides when it is over. Not SIG_IGN, which
        # the programs that tools start would inherit.
        signal.signal(number, _note)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _bury(workers, control)
        if control not in ready:
            continue
        try:
            order, ends, _, _ = socket.recv_fds(control, _ORDER.size, 1)
        except ConnectionResetError:
            order = b""
        if not order:
            break
        kind, number = _ORDER.unpack(order)
        if kind == _KILL:
            for pid in [pid for pid, other in workers.items() if other == number]:
                _kill_group(pid)
        elif (pid := os.fork()) == 0:
            for unneeded in (control, woken, wakes):
                unneeded.close()
            _be_worker(socket.socket(fileno=ends[0]), cast(Birth, birth))
        else:
            os.close(ends[0])
            with contextlib.suppress(OSError):  # both sides do it: either may come first
                os.setpgid(pid, pid)
            workers[pid] = number
    for pid in workers:
        _kill_group(pid)


def _note(number: int, frame: object) -> None:
    """A signal wakes the nursery up, and does nothing else."""


def _read_frame(control: socket.socket) -> tuple[object, ...]:
    size = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
    return cast(tuple[object, ...], pickle.loads(control.recv(size, socket.MSG_WAITALL)))  # the trainer wrote it


def _bury(workers: dict[int, int], control: socket.socket) -> None:
    while workers:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _kill_group(pid)
        if pid in workers:
            with contextlib.suppress(OSError):
                control.sendall(_DEATH.pack(workers.pop(pid), os.waitstatus_to_exitcode(status)))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _be_worker(end: socket.socket, birth: Birth) -> None:
    """The rest of a forked process."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        if sys.platform == "linux":  # a worker that hangs would outlive a nursery that was killed
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        random.seed()  # else all workers would draw alike
        _serve(WorkerPipe(end), birth)
    finally:
        os._exit(0)


def _serve(pipe: WorkerPipe, birth: Birth) -> None:
    logging.getLogger().addHandler(SendingHandler(pipe.send))
    try:
        env = _make(birth)
    except BaseException as error:  # noqa: BLE001 - told to the trainer, an exit included
        pipe.send(Ready(str(error) if isinstance(error, TurnwiseError) else explain(error)))
        return
    asyncio.run(_answer_calls(pipe, env))


def _make(birth: Birth) -> Env:
    sys.path[:] = birth.folders
    if birth.settings is not None:
        return make_env(birth.settings)
    return cast(Env, pickle.loads(birth.pickled))  # the trainer wrote it


async def _answer_calls(pipe: WorkerPipe, env: Env) -> None:
    loop, trainer_left = asyncio.get_running_loop(), asyncio.Event()
    here = threading.get_ident()
    outbox: list[FromWorker] = []

    def flush() -> None:
        messages = tuple(outbox)
        outbox.clear()
        pipe.send(*messages)

    def send(message: FromWorker) -> None:
        if threading.get_ident() != here:
            pipe.send(message)
            return
        if not outbox:
            loop.call_soon(flush)
        outbox.append(message)

    server = EpisodeServer(env, send)

    def arrived() -> None:
        try:
            for message in pipe.receive():
                server.handle(cast(ToWorker, message))
        except EOFError:
            trainer_left.set()

    loop.add_reader(pipe, arrived)
    pipe.send(Ready())
    with watching():
        await trainer_left.wait()
    os._exit(0)  # whatever threads and tasks are left: nothing waits for them


if __name__ == "__main__":
    run_nursery(socket.socket(fileno=int(sys.argv[1])))
