"""Foreign packages in processes of their own: a call has a deadline, and what outlives it is killed.

    Children("turnwise.envs.adapters.worlds.textworld:TextWorlds", {"cache": "..."}, count=2, seconds=120)

Invariant: the package is imported in a child and never in the trainer: its global random state, its prints, its native
code and its hangs stay there. A child that is lost is started anew, as another generation: what it held is gone.
"""

import contextlib
import importlib.util
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, cast

from turnwise.errors import EnvError
from turnwise.types import Json

_SERVER: Final = "turnwise.envs.adapters.serve"
_START_SECONDS: Final = 180.0
"""What a child has to import its package."""
_EXIT_SECONDS: Final = 2.0
"""From the end of its socket to the end of a process that ends itself."""


class ForeignError(Exception):
    """The package raised: `KeyError: 'kitchen' (textworld.py:88 in step)`; its process goes on."""


class ChildLostError(Exception):
    """The process died, or was killed for a call that gave no answer in time; what it held is gone."""


class ChildTimeoutError(ChildLostError):
    """This very call gave no answer in time, and its process was killed."""


class Child:
    """One process that answers `call("step", 7, "go north")` by the method of that name of the object it serves."""

    def __init__(self, target: str, settings: Mapping[str, Json], seconds: float) -> None:
        self._command = [sys.executable, "-m", _SERVER, target, json.dumps(settings), str(seconds)]
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._owner = 0
        self._end: weakref.finalize[..., Child] | None = None
        self.generation = 0
        """How often it was started: what was opened in an earlier generation is lost."""

    def call(self, method: str, *args: Json, generation: int | None = None) -> Json:
        """What the method returns, as JSON; a ChildLostError where the process is not of this generation any more."""
        with self._lock:
            if generation is not None and not (self._is_running() and generation == self.generation):
                raise ChildLostError(f"{method}: the process that held this episode is gone")
            return self._exchange(self._start(), json.dumps([method, args]), method, self._seconds)

    def open(self, method: str, *args: Json) -> tuple[Json, int]:
        """What the method returns, with the generation that holds what it opened."""
        with self._lock:
            value = self._exchange(self._start(), json.dumps([method, args]), method, self._seconds)
            return value, self.generation

    def close(self) -> None:
        """Ends the process, with all that it started; a later call starts another."""
        with self._lock:
            self._kill()

    def _exchange(self, connection: Connection, request: str, what: str, seconds: float) -> Json:
        try:
            if request:
                connection.send_bytes(request.encode())
            if not connection.poll(seconds):
                self._kill()
                raise ChildTimeoutError(f"{what} gave no answer within {seconds:g} seconds; its process was killed")
            reply = cast(dict[str, Json], json.loads(connection.recv_bytes()))
        except (EOFError, OSError) as error:
            raise ChildLostError(f"{what}: its process ended with status {self._kill(_EXIT_SECONDS)}") from error
        if "error" in reply:
            raise ForeignError(str(reply["error"]))
        return reply["value"]

    def _is_running(self) -> bool:
        # A process that was forked off must not talk to its parent's child: it starts one of its own.
        return self._connection is not None and self._owner == os.getpid()

    def _start(self) -> Connection:
        """The connection to the process, which is started where there is none."""
        if self._connection is not None and self._is_running():
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                # The order of a set is part of what some packages make of a seed.
                env=os.environ | {"PYTHONPATH": _search_path(), "PYTHONHASHSEED": "0"},
            )
        self._connection, self._owner = Connection(ours.detach()), os.getpid()
        self._end = weakref.finalize(self, _end_process, self._process, self._owner)
        self.generation += 1
        try:
            self._exchange(self._connection, "", "the import of the package", _START_SECONDS)
        except ForeignError:
            self._kill()
            raise
        return self._connection

    def _kill(self, patience: float = 0.0) -> int | None:
        """The exit status, where the process ended by itself, or does so within these seconds."""
        process, connection, self._process, self._connection = self._process, self._connection, None, None
        if connection is not None:
            connection.close()
        if self._end is not None:
            self._end.detach()
        if process is None:
            return None
        if patience and self._owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        return _end_process(process, self._owner)


class Children:
    """So many processes; an episode keeps the one it is given, and all end with the last reference to this."""

    def __init__(self, target: str, settings: Mapping[str, Json], *, count: int = 1, seconds: float = 120.0) -> None:
        if count < 1:
            raise EnvError(f"processes is {count}; give at least 1")
        if not (math.isfinite(seconds) and seconds > 0):
            raise EnvError(f"seconds is {seconds}; give the seconds that a call of the package may take")
        self._children = [Child(target, settings, seconds) for _ in range(count)]
        self._turn = itertools.count()

    def assign(self) -> Child:
        """The process of the next episode, in turn."""
        return self._children[next(self._turn) % len(self._children)]

    def close(self) -> None:
        """Ends all processes now; a later call starts new ones."""
        for child in self._children:
            child.close()


def require_package(module: str, extra: str) -> None:
    """Refuses, in one line that names the extra, to go on without a package; imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise EnvError(f"the package {module} is not installed; pip install 'turnwise[{extra}]'")


def _search_path() -> str:
    """Where this package lies, first, and then what was on the caller's path."""
    here = str(Path(__file__).parents[3])
    return os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))


def _end_process(process: "subprocess.Popen[bytes]", owner: int) -> int | None:
    """Kills the process and all that it started (a Java machine, say), unless another process owns it."""
    if owner != os.getpid():
        return None
    status = process.poll()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return status
