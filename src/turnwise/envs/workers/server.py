"""The worker's side: runs the calls of its episodes, side by side, in one event loop.

Invariant: whatever foreign code raises, an exit included, is an answer in words; only the death of the process goes
unanswered. It knows no transport: it is given messages and a function that sends some.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from turnwise.envs.base import Env, close_env
from turnwise.envs.boundary import explain
from turnwise.envs.chaos import attempt
from turnwise.envs.contract import check_expert, check_opening, check_step
from turnwise.envs.workers.protocol import (
    Answer,
    Call,
    Cancel,
    Failed,
    FromWorker,
    Leaving,
    Lines,
    Log,
    Opening,
    Reset,
    Spent,
    Stuck,
    ToWorker,
)
from turnwise.rewards.judge_client import CostMeter
from turnwise.tools.code_lines import line_of_task, line_of_thread
from turnwise.tools.running import abandoned, being_cancelled
from turnwise.tools.watchdog import calls_foreign_code, playing
from turnwise.types import Message, Step

T = TypeVar("T")

_WORD_AFTER = 1.0
"""Seconds after which the trainer is told where a call is, and again after as many."""


_call_of_context: ContextVar[int] = ContextVar("call", default=0)
_calls: "WeakKeyDictionary[asyncio.Task[object], int]" = WeakKeyDictionary()
"""The call that each task works for, those that foreign code makes included."""


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[object, object, T], **options: object
) -> asyncio.Task[T]:
    task = asyncio.Task(work, loop=loop, **options)  # type: ignore[arg-type]  # what create_task was given
    _calls[task] = _call_of_context.get()
    return task


_BUSY = 0.1 * _WORD_AFTER
"""Seconds of processor time between two looks that make a thread busy."""
_MOST_ABANDONED = 64
"""Threads that were given up and sleep, which cost little but memory."""


class EpisodeServer:
    """`server.handle(message)` for each that arrives; `send` is called from several threads."""

    def __init__(self, env: Env, send: Callable[[FromWorker], None]) -> None:
        self._prototype, self._send = env, send
        self._episodes: dict[int, Env] = {}
        self._running: dict[int, tuple[asyncio.Task[None], float]] = {}
        """By call: what runs it, and since when."""
        self._costs, self._stuck = CostMeter(), False
        self._seconds: dict[int, float] = {}
        """Processor time of threads that were given up, as it was last seen."""
        self._thread, self._loop = threading.current_thread(), asyncio.get_running_loop()
        self._loop.set_task_factory(_make_task)  # type: ignore[arg-type]  # typeshed wants one signature for all Pythons
        threading.Thread(target=self._tell_lines, name="turnwise-lines", daemon=True).start()

    def handle(self, message: ToWorker) -> None:
        if isinstance(message, Call):
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._running[message.id] = task, time.monotonic()
        elif isinstance(message, Cancel) and message.id in self._running:
            self._running[message.id][0].cancel()

    async def _answer(self, call: Call) -> None:
        _call_of_context.set(call.id)
        _calls[cast("asyncio.Task[None]", asyncio.current_task())] = call.id
        try:
            value = await self._run(call)
            key, failure = await self._state_key(call, value)
            answer: Answer | Failed = Answer(call.id, value, key, failure)
        except asyncio.CancelledError as error:
            answer = Failed(call.id, "it was cancelled" if being_cancelled() else explain(error))
        except BaseException as error:  # noqa: BLE001 - the boundary: an exit of foreign code ends nothing of ours
            answer = Failed(call.id, explain(error))
        del self._running[call.id]
        if call.method == "close":
            self._episodes.pop(call.episode, None)
            self._account()
        self._send(answer)

    async def _run(self, call: Call) -> Opening | Step | Message | None:
        argument = call.argument
        if isinstance(argument, Reset):
            playing.set(argument.task.id)
            attempt.set(argument.attempt)
            prototype = self._prototype.with_faults() if argument.faults else self._prototype
            env = self._episodes[call.episode] = prototype.spawn()
            messages = check_opening(await env.reset(argument.task, argument.episode_seed))
            return Opening(messages, env.tools)
        env = self._episodes[call.episode]
        match call.method:
            case "step":
                assert isinstance(argument, Message)
                return check_step(await env.step(argument))
            case "overflow":
                step = await env.overflow()
                return None if step is None else check_step(step)
            case "expert":
                return check_expert(await env.run_sync(env.expert))
            case "expert_summary":
                return check_expert(await env.run_sync(env.expert_summary))
            case _:
                await close_env(env)
                return None

    async def _state_key(self, call: Call, value: object) -> tuple[str | None, str]:
        """The key of the state that the agent acts in next; nothing asks for one after the end."""
        if call.method in ("close", "expert", "expert_summary") or (isinstance(value, Step) and value.done):
            return None, ""
        env = self._episodes[call.episode]
        try:
            return await env.run_sync(env.state_key), ""
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            return None, explain(error)

    def _account(self) -> None:
        """Tells what judges cost."""
        if costs := self._costs.read():
            self._send(Spent(costs))

    def _tell_lines(self) -> None:
        """In a thread of its own, as foreign code may hold the event loop."""
        while True:
            time.sleep(_WORD_AFTER)
            self._leave_if_stuck()
            now = time.monotonic()
            late = {number: task for number, (task, since) in list(self._running.items()) if now - since > _WORD_AFTER}
            if late:
                task = asyncio.current_task(self._loop)
                running, here = _calls.get(task, 0) if task else 0, line_of_thread(self._thread)
                lines = {number: line_of_task(task) for number, task in late.items()}
                self._send(Lines(lines | ({running: here} if here and running in late else {}), running))

    def _leave_if_stuck(self) -> None:
        """Ends the process when it has no episode left, if threads that were given up are busy, or are many."""
        before, self._seconds = self._seconds, _seconds_of(abandoned)
        spinning = any(spent - before[number] > _BUSY for number, spent in self._seconds.items() if number in before)
        if not self._stuck and (spinning or len(self._seconds) > _MOST_ABANDONED):
            self._stuck = True
            self._send(Stuck())
        if self._stuck and not self._episodes:
            self._send(Leaving())
            os._exit(0)


def _seconds_of(threads: Iterable[threading.Thread]) -> dict[int, float]:
    """Processor time by thread, of those that run."""
    found: dict[int, float] = {}
    for thread in list(threads):
        if thread.is_alive() and thread.ident is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found[thread.ident] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found


def _describe(local: Mapping[str, object]) -> str:
    call = cast(Call, local["call"])
    return f"{call.method} of task '{playing.get()}'" if playing.get() else call.method


calls_foreign_code(EpisodeServer._run, _describe)


class SendingHandler(logging.Handler):
    """Hands warnings of this process to the trainer, where users look for them."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Log(record.name, record.levelno, self.format(record)))
