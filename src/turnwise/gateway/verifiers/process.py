"""The process in which verifiers runs: requests by line, answered in any order.

Invariant: every request is answered, or fails with the last line that the process wrote; the process ends with the
object that started it, at the latest with this process, whose end closes its input.
"""

import asyncio
import itertools
import json
import os
import subprocess
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, cast

from turnwise.errors import EnvError
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.types import Json, Task

_SCRIPT: Final = Path(__file__).with_name("worker.py")
_PAGE: Final = 256
"""Tasks that are fetched at once."""
_GRACE_SECONDS: Final = 5.0

Reply = Mapping[str, Json]


class LostWorker(InfrastructureError):
    """The process in which verifiers runs has ended, or an episode of it failed."""


class Worker:
    """`worker = Worker(["python"], {"taskset": {"id": "gsm8k"}}, [])`; `worker.task(0)`, `await worker.play(...)`."""

    def __init__(self, command: Sequence[str], config: Mapping[str, Json], path: Sequence[str]) -> None:
        """Starts it and waits until it has loaded the environment."""
        self._command, self._config, self._path = tuple(command), dict(config), tuple(path)
        self._lock = threading.Lock()
        self._processes: dict[int, _Process] = {}
        self._pages: dict[int, list[Reply]] = {}
        weakref.finalize(self, _end_all, self._processes)
        try:
            self._process()
        except LostWorker as error:
            raise EnvError(f"{error}: run it by hand to see why") from None

    def task(self, place: int) -> Reply:
        """The data of the task at this place of the taskset."""
        page = place // _PAGE
        if page not in self._pages:
            start = page * _PAGE
            reply = self._process().ask({"method": "tasks", "start": start, "stop": start + _PAGE}).result()
            self._pages[page] = cast(list[Reply], reply["tasks"])
        listed = self._pages[page]
        if place % _PAGE >= len(listed):
            count = page * _PAGE + len(listed)
            raise EnvError(f"the taskset has {count} tasks: lower env.args.tasks or env.args.test_tasks")
        return listed[place % _PAGE]

    async def play(self, task: Task, base_url: str) -> Reply:
        """The rewards and metrics of an episode; a LostWorker where it failed."""
        asked: dict[str, Json] = {"method": "run", "task": task.data, "base_url": base_url}
        return await asyncio.wrap_future(self._process().ask(asked))

    def _process(self) -> "_Process":
        """The one of this process, started anew where it has ended; a forked process has its own."""
        with self._lock:
            running = self._processes.get(os.getpid())
            if running is None or not running.alive:
                running = self._processes[os.getpid()] = _Process(self._command, self._config, self._path)
            return running


class _Process:
    """One process, its pending requests, and the end of what it wrote to standard error."""

    def __init__(self, command: Sequence[str], config: Mapping[str, Json], path: Sequence[str]) -> None:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        # -P: or the modules beside the script would stand before those of the same name that verifiers imports.
        words = [*command, "-P", str(_SCRIPT), json.dumps(config, default=dict)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables)
        except OSError as error:
            raise LostWorker(f"cannot run {command[0]!r} ({error.strerror})") from None
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._pending: dict[int, Future[Reply]] = {}
        self._said: deque[str] = deque(maxlen=20)
        self._given_up = False
        ready: Future[Reply] = Future()
        self._pending[0] = ready
        for stream, read in ((self._process.stdout, self._read_replies), (self._process.stderr, self._said.extend)):
            threading.Thread(target=read, args=(stream,), name="turnwise-verifiers", daemon=True).start()
        ready.result()

    @property
    def alive(self) -> bool:
        """Whether it can be asked; by itself, the end of its output tells too late, or never where a child holds it."""
        return not self._given_up and self._process.poll() is None

    def ask(self, request: Mapping[str, Json]) -> "Future[Reply]":
        """Sends a request; its reply is the future's result."""
        number, answer = next(self._numbers), Future[Reply]()
        self._pending[number] = answer
        try:
            with self._lock:
                stream = cast(IO[str], self._process.stdin)
                stream.write(json.dumps({"id": number, **request}, default=dict) + "\n")
                stream.flush()
        except OSError:
            self._fail_all()
        return answer

    def end(self) -> None:
        """Closes its input, and kills it where that does not end it."""
        self._given_up = True
        with suppress(OSError):
            cast(IO[str], self._process.stdin).close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read_replies(self, stream: IO[str]) -> None:
        for line in stream:
            reply = json.loads(line)
            answer = self._pending.pop(0 if reply.get("ready") else reply["id"], None)
            if answer is None or answer.cancelled():
                continue
            if "error" in reply:
                answer.set_exception(LostWorker(f"verifiers: {reply['error']}"))
            else:
                answer.set_result(reply)
        self._process.wait()
        self._fail_all()

    def _fail_all(self) -> None:
        self._given_up = True
        said = next((line.strip() for line in reversed(self._said) if line.strip()), "it wrote nothing")
        while self._pending:
            with suppress(KeyError):
                answer = self._pending.popitem()[1]
                if not answer.done():
                    answer.set_exception(LostWorker(f"the process of verifiers has ended: {said[:300]}"))


def _end_all(processes: dict[int, _Process]) -> None:
    running = processes.pop(os.getpid(), None)
    if running is not None:
        running.end()
