"""The process on a node that forks environment workers there and carries their messages.

Invariant: orders are carried out in the order they were given, whichever call arrives first; news of a worker keep
theirs. When this process ends, so do its workers.
"""

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from turnwise.cluster.home import Home
from turnwise.envs.workers.nursery import LocalConnection, LocalNursery
from turnwise.envs.workers.protocol import Birth, End, FromWorker, Ready, ToWorker
from turnwise.errors import EnvError


@dataclass(frozen=True, slots=True)
class Order:
    """`Order(3, "start")`: to start the third worker, to kill it, or to let it go."""

    worker: int
    what: Literal["start", "kill", "close"]


@dataclass(frozen=True, slots=True)
class Post:
    """Messages to a worker."""

    worker: int
    messages: tuple[ToWorker, ...]


ToNode: TypeAlias = Sequence[Order | Post]
FromNode: TypeAlias = Sequence[tuple[int, FromWorker | End]]
"""What workers say, each with its number, and how they ended."""


class EnvActor:
    """Made on a node; its methods are called by one trainer. What is pickled travels as bytes."""

    def __init__(self, home: Home | None) -> None:
        """`home`: None where a folder of the user's was copied here, which is the working directory."""
        if home is not None:
            home.enter()
        self._birth: Birth | None = None
        self._nursery: LocalNursery | None = None
        self._workers: dict[int, LocalConnection] = {}
        self._early: dict[int, bytes] = {}
        """Orders that arrived before others that were given earlier."""
        self._due = 0
        self._outbox: list[tuple[int, FromWorker | End]] = []
        self._has_news = asyncio.Event()

    async def open(self, birth: Birth) -> str:
        """Gets ready to fork workers, and returns the node's name."""
        self._birth = replace(birth, folders=tuple(os.path.abspath(one) for one in sys.path))
        self._nursery = LocalNursery(self._birth)
        self._carry_out_due()
        return socket.gethostname()

    async def send(self, number: int, orders: bytes) -> None:
        """Carries out the `number`-th orders, and those that waited for them; calls may overtake each other."""
        self._early[number] = orders
        if self._nursery is not None:
            self._carry_out_due()

    async def receive(self) -> bytes:
        """Waits for news, and returns all there are."""
        await self._has_news.wait()
        self._has_news.clear()
        news, self._outbox = self._outbox, []
        return pickle.dumps(news, pickle.HIGHEST_PROTOCOL)

    def _carry_out_due(self) -> None:
        while self._due in self._early:
            due: ToNode = pickle.loads(self._early.pop(self._due))  # the trainer wrote it
            self._due += 1
            for order in due:
                self._carry_out(order)

    def _carry_out(self, order: Order | Post) -> None:
        if isinstance(order, Order) and order.what == "start":
            self._start(order.worker)
            return
        worker = self._workers.get(order.worker)
        if worker is None:  # it has ended, and the trainer will read so
            return
        if isinstance(order, Post):
            worker.send(*order.messages)
        elif order.what == "kill":
            worker.kill()
        else:
            del self._workers[order.worker]
            worker.close()

    def _start(self, number: int) -> None:
        assert self._nursery is not None, "it was opened"
        assert self._birth is not None
        try:
            worker = self._nursery.start()
        except EnvError:  # the process that forks was killed, and with it all workers
            self._nursery = LocalNursery(self._birth)
            worker = self._nursery.start()
        self._workers[number] = worker
        worker.watch(asyncio.get_running_loop(), partial(self._read, number))

    def _read(self, number: int) -> None:
        worker = self._workers[number]
        try:
            for message in worker.receive():
                self._tell(number, _placed(message))
        except EOFError:
            end = worker.how_it_ended()
            del self._workers[number]
            worker.close()
            self._tell(number, end)

    def _tell(self, number: int, news: FromWorker | End) -> None:
        self._outbox.append((number, news))
        self._has_news.set()


def _placed(message: FromWorker) -> FromWorker:
    """The message, with the node where a worker says that it has no environment: other nodes may have what it lacks."""
    if not isinstance(message, Ready) or not message.failure:
        return message
    return Ready(
        f"{message.failure} (on the node {socket.gethostname()}, which needs the environment's packages and files: see "
        "cluster.working_dir)"
    )
