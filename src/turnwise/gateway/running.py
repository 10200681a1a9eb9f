"""A program under way: a process, or a function in a thread; its end ends the session.

Invariant: `stop` can be called at any time, and nothing of the program can reach its session afterwards.
"""

import asyncio
import inspect
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from turnwise.errors import EnvError
from turnwise.gateway.client import AgentClient
from turnwise.gateway.process import Process
from turnwise.gateway.session import Ended, Session, call_in
from turnwise.types import Task

AgentFunction: TypeAlias = Callable[[Task, AgentClient], object]
"""`async def run(task, client)`, or without `async`; what it returns is for the scoring function."""

_LONGEST_VARIABLE: Final = 120_000
"""Bytes of an environment variable; Linux takes 128 KiB."""


class RunningCommand:
    """A command under way; its exit ends the session."""

    def __init__(self, process: Process, session: Session) -> None:
        self._process = process
        self._watch = asyncio.ensure_future(self._wait(session))

    @classmethod
    async def start(
        cls, command: Sequence[str], variables: Mapping[str, str], cwd: str | None, session: Session
    ) -> "RunningCommand":
        return cls(await Process.start(command, variables, cwd), session)

    async def stop(self) -> None:
        self._watch.cancel()
        await self._process.stop()

    async def _wait(self, session: Session) -> None:
        session.end(await self._process.wait())


class RunningFunction:
    """A function under way in a thread with an event loop of its own, so that it may block; its end ends the session.

    A thread cannot be killed: on `stop` the function is cancelled, and its requests are refused.
    """

    def __init__(self, function: AgentFunction, task: Task, client: AgentClient, session: Session) -> None:
        self._function, self._task, self._client, self._session = function, task, client, session
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call: asyncio.Task[object] | None = None
        threading.Thread(target=self._run, name=f"agent {session.name}", daemon=True).start()

    async def stop(self) -> None:
        loop, call = self._loop, self._call
        if loop is not None and call is not None:
            call_in(loop, call.cancel)

    def _run(self) -> None:
        try:
            self._session.end(Ended(result=asyncio.run(self._main())))
        except BaseException as error:  # noqa: BLE001 - a program may raise anything; it costs its episode
            failure = f"the program raised {type(error).__name__}: {error}"
            self._session.end(Ended(failure=failure, crashed=True))

    async def _main(self) -> object:
        self._loop, self._call = asyncio.get_running_loop(), asyncio.current_task()
        try:
            result = self._function(self._task, self._client)
            return await result if inspect.isawaitable(result) else result
        finally:
            await self._client.close()


class Places:
    """How many programs run at once, in each event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._semaphores = weakref.WeakKeyDictionary()

    def here(self) -> asyncio.Semaphore:
        return self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._most))


def describe_episode(task: Task, session: Session, url: str, episode_seed: int) -> dict[str, str]:
    """What a command is told of its episode by environment variables."""
    written = json.dumps({"id": task.id, "seed": task.seed, "data": task.data}, default=dict)
    if len(written) > _LONGEST_VARIABLE:
        raise EnvError(
            f"task '{task.id}' has {len(written)} bytes, more than an environment variable takes: "
            "put a path into its data, or use AgentProgram(function=...)"
        )
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1,localhost")))
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": session.name,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": session.name,
        "TURNWISE_SESSION_URL": url,
        "TURNWISE_TASK": written,
        "TURNWISE_EPISODE_SEED": str(episode_seed),
        "NO_PROXY": local,
        "no_proxy": local,
    }
