"""One worker as the trainer sees it: calls in, answers out, and what is known of calls that take long.

Invariant: a call ends with an answer, a failure in words, or `WorkerLost`. As with tools that have a thread, fast
calls return before anything else in the event loop runs, as if they had run inline: episodes that go on in the order
in which workers happened to answer would make runs that no seed repeats. Calls that prove slow are awaited, side by
side, and those of one tick of the event loop travel together.
"""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from turnwise.envs.boundary import RemoteError
from turnwise.envs.workers.protocol import (
    Answer,
    Call,
    Cancel,
    Connection,
    Failed,
    FromWorker,
    Leaving,
    Lines,
    Log,
    Method,
    Ready,
    Reset,
    Spent,
    Stuck,
)
from turnwise.rewards.judge_client import add_costs
from turnwise.tools.repeats import warn_collapsed
from turnwise.types import Message

_SLOW = 5e-3
"""Seconds, there and back, from which a call counts as slow."""
_SLOW_CALLS = 8
_SLOW_SHARE = 0.2
"""A method is slow when more of its calls were: so many, and this share of all."""
_PATIENCE = 0.05
"""Seconds that the event loop stands still for a call of a method that is not known to be slow."""

START_SECONDS = 600.0
"""Until a worker that makes its environment has failed."""

_SILENCE = 4.0
"""Seconds after which a worker with a call under way would have spoken, if it could."""

_NUMBERS = re.compile(r"\d+")
"""What differs in warnings of one kind."""
_ids = itertools.count(1)


class WorkerLost(Exception):
    """The worker ended before it answered; the episode's state is gone with it."""

    def __init__(self, cause: str, *, suspect: bool = False, culprit: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.suspect = suspect
        """Whether this call may have ended it."""
        self.culprit = culprit
        """Whether it must have: there was no other."""


class Paces:
    """How fast each method has been, over all workers of a fleet."""

    def __init__(self) -> None:
        self._calls: dict[Method, list[int]] = {}

    def is_slow(self, method: Method) -> bool:
        calls, slow = self._calls.get(method, (0, 0))
        return slow > _SLOW_CALLS + _SLOW_SHARE * calls

    def add(self, method: Method, seconds: float) -> None:
        counts = self._calls.setdefault(method, [0, 0])
        counts[0] += 1
        counts[1] += seconds > _SLOW


@dataclass(slots=True)
class _Waiting:
    call: Call
    where: str
    answer: "asyncio.Future[Answer]"
    line: str = ""


class Worker:
    """`await worker.call(3, "step", message, where="step of task 'x'")`; `episodes` are those that live in it.

    `died` is called once when it has ended by itself, with what it was doing.
    """

    def __init__(self, connection: Connection, paces: Paces, died: "Callable[[Worker, str], None]") -> None:
        self._connection, self._paces, self._died = connection, paces, died
        self._waiting: dict[int, _Waiting] = {}
        self._cancelled: dict[int, int] = {}
        """Calls that nothing waits for and that the worker has not ended yet, each with its episode."""
        self._outbox: list[Call] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running, self._heard, self._made = 0, time.monotonic(), time.monotonic()
        """The call that held the worker when it last spoke of it, and when it last spoke."""
        self.episodes: set[int] = set()
        self.ready: bool | None = None
        """None while it makes its environment; False if it could not."""
        self.failure = ""
        self.cause = ""
        """Why it ended; empty while it lives."""
        self.lost_with = ""
        """The node that it was lost with, if that is why."""
        self.reserved = False
        """Whether it is for one episode alone."""
        self.stuck = self.leaving = False
        """Whether it has threads that never end, and so gets no further episode; whether it ends itself."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has this event loop read what the worker sends; a program may run one loop after another."""
        if self._loop is not loop and not self.cause:
            self._loop = loop
            self._connection.watch(loop, self.read)

    async def call(self, episode: int, method: Method, argument: Reset | Message | None, *, where: str) -> Answer:
        """What the worker answers; a RemoteError for what foreign code raised there."""
        loop = asyncio.get_running_loop()
        self.attach(loop)
        call, began = Call(next(_ids), episode, method, argument), time.monotonic()
        waiting = _Waiting(call, where, loop.create_future())
        alone = self._connection.is_near and not self._waiting and not self._cancelled and self.ready
        self._waiting[call.id] = waiting
        if self.cause:
            self._lose(suspects=False)
        elif alone and not self._paces.is_slow(method):
            self._connection.send(call)
            self._wait_inline(waiting)
        else:
            if not self._outbox:
                loop.call_soon(self._flush)
            self._outbox.append(call)
        try:
            answer = await waiting.answer
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        finally:
            self._waiting.pop(call.id, None)
        self._paces.add(method, time.monotonic() - began)
        return answer

    def line(self, episode: int) -> str:
        """Where the call of an episode was last seen."""
        return next((one.line for one in self._waiting.values() if one.call.episode == episode), "")

    def hangs_in(self, episode: int) -> frozenset[int]:
        """The calls of an episode that were cancelled and still run in it."""
        return frozenset(number for number, other in self._cancelled.items() if other == episode)

    def held_by(self) -> int:
        """The episode whose code holds the worker, so that calls of others wait; 0: none, or it is not known.

        Code that holds Python's lock, too, keeps the worker silent: it is taken to be that of the oldest call.
        """
        under_way = {number: one.call.episode for number, one in self._waiting.items()} | self._cancelled
        if time.monotonic() - self._heard < _SILENCE:
            return under_way.get(self._running, 0)
        return under_way[min(under_way)] if under_way else 0

    def is_starting(self) -> bool:
        """Whether it makes its environment, or waits for a machine to do so; for so long it may."""
        return self.ready is None and not self.cause and time.monotonic() - self._made < START_SECONDS

    def kill(self, cause: str) -> None:
        """Ends it; its episodes are moved, as none of them is to blame."""
        if not self.cause:
            self._connection.kill()
            self._end(cause, suspects=False)

    def wait_until_ready(self, seconds: float) -> None:
        """Stands still until it has its environment, or has none."""
        deadline = time.monotonic() + seconds
        while self.ready is None and not self.cause and time.monotonic() < deadline:
            self._connection.wait(0.1)
            self.read()

    def read(self) -> None:
        """Takes what has arrived."""
        if self.cause:
            return
        try:
            for message in self._connection.receive():
                self._heard = time.monotonic()
                self._take(message)
        except EOFError:
            under_way = [one.where for one in self._waiting.values()] or ["no call"]
            where = under_way[0] + (f" or one of {len(under_way) - 1} other calls" if len(under_way) > 1 else "")
            end = self._connection.how_it_ended()
            self.lost_with = end.node
            self._end(self.failure or end.words, suspects=not (self.leaving or end.node))
            self._died(self, where)

    def close(self) -> None:
        if not self.cause:
            self.cause = "closed"
            self._connection.close()

    def _wait_inline(self, waiting: _Waiting) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not waiting.answer.done() and (left := deadline - time.monotonic()) > 0:
            self._connection.wait(left)
            self.read()

    def _flush(self) -> None:
        calls, self._outbox = self._outbox, []
        if calls and not self.cause:
            self._connection.send(*calls)

    def _take(self, message: FromWorker) -> None:
        match message:
            case Answer() | Failed():
                self._settle(message)
            case Lines(by_call, running):
                self._running = running
                for number, line in by_call.items():
                    if number in self._waiting and line:
                        self._waiting[number].line = line
            case Log(logger, level, text) if level > logging.WARNING:
                logging.getLogger(logger).log(level, "%s", text)
            case Log(logger, _, text):
                warn_collapsed(logging.getLogger(logger), _NUMBERS.sub("#", text), text)
            case Spent(costs):
                add_costs(costs)
            case Stuck():
                self.stuck = True
            case Leaving():
                self.leaving = True
            case Ready(failure):
                self.ready, self.failure = not failure, failure

    def _settle(self, message: Answer | Failed) -> None:
        self._cancelled.pop(message.id, None)
        waiting = self._waiting.get(message.id)
        if waiting is None or waiting.answer.done():
            return
        if isinstance(message, Answer):
            waiting.answer.set_result(message)
        else:
            waiting.answer.set_exception(RemoteError(message.words))

    def _cancel(self, call: Call) -> None:
        if not self.cause:
            self._cancelled[call.id] = call.episode
            self._flush()  # or the call would arrive after its cancellation
            self._connection.send(Cancel(call.id))

    def _end(self, cause: str, *, suspects: bool) -> None:
        self.cause = cause
        self._connection.close()
        self._cancelled.clear()
        self._lose(suspects=suspects)

    def _lose(self, *, suspects: bool) -> None:
        lost = [waiting for waiting in self._waiting.values() if not waiting.answer.done()]
        for waiting in lost:
            culprit = suspects and len(lost) == 1
            waiting.answer.set_exception(WorkerLost(self.cause, suspect=suspects, culprit=culprit))
