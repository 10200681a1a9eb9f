"""A node with environment workers as the trainer sees it, and the connections to those workers.

Invariant: orders of one tick of the event loop travel in one call, and news in as few as arrive while the last ones
travel. A thread waits for news, so that the trainer may stand still or run any event loop. When the node's actor is
gone, each of its workers has ended, with that as the cause.
"""

import asyncio
import itertools
import pickle
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from turnwise.cluster.envs.actor import FromNode, Order, Post
from turnwise.envs.workers.protocol import Birth, End, FromWorker, ToWorker

_numbers = itertools.count(1)
_RETRY_SECONDS = 1.0
"""Between two attempts to start an actor: one that was sent to a node which is gone fails once Ray knows that."""


class NodeLost(Exception):
    """The actor of a node, or the node, is gone; says why."""


class Remote(Protocol):
    """An `EnvActor` on its node."""

    def open(self, birth: Birth, seconds: float) -> str:
        """The actor's `open`; waits until a node has room for it, for a TimeoutError at the longest."""
        ...

    def send(self, number: int, orders: bytes) -> None:
        """The actor's `send`; returns at once. An actor that is gone is noticed by `receive`."""
        ...

    def receive(self) -> bytes:
        """The actor's `receive`; waits, and raises `NodeLost`."""
        ...

    def kill(self) -> None:
        """Ends the actor and its workers."""
        ...


class EnvNode:
    """`node.start()` is a connection to a new worker there; `capacity` is how many it has room for."""

    def __init__(self, start: Callable[[], Remote], birth: Birth, *, capacity: int, patience: float) -> None:
        """`start` starts an actor; it is called again, for `patience` seconds, until one is there."""
        self.capacity = capacity
        self.name = ""
        """Empty while no node has room for it."""
        self.end: End | None = None
        """Why it is gone."""
        self._start, self._birth, self._patience = start, birth, patience
        self._remote = start()
        self._number = next(_numbers)
        self.changed = threading.Condition()
        """Guards what the thread shares with the trainer: connections, their inboxes and ends."""
        self._sending = threading.Lock()
        self._connections: dict[int, NodeConnection] = {}
        self._workers = itertools.count(1)
        self._outbox: list[Order | Post] = []
        self._sends = itertools.count()
        self._flushes_on: AbstractEventLoop | None = None
        threading.Thread(target=self._listen, name="turnwise-env-node", daemon=True).start()

    @property
    def free(self) -> int:
        """Workers that it has room for; below zero where it has more than that."""
        return self.capacity - len(self._connections)

    def start(self) -> "NodeConnection":
        connection = NodeConnection(self, next(self._workers))
        with self.changed:
            self._connections[connection.number] = connection
            connection.end = self.end
        self.post(Order(connection.number, "start"))
        return connection

    def post(self, order: Order | Post) -> None:
        """Sends an order, with all others of this tick of the event loop where one runs."""
        with self._sending:
            self._outbox.append(order)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._flushes_on is not loop:
            self._flushes_on = loop
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Sends the orders there are, once the actor is."""
        with self._sending:
            self._flushes_on = None
            if not self.name or self.end is not None:
                return
            orders, self._outbox = self._outbox, []
            if orders:
                self._remote.send(next(self._sends), pickle.dumps(orders, pickle.HIGHEST_PROTOCOL))

    def drop(self, connection: "NodeConnection") -> None:
        """Lets a worker go that is there, and forgets one that has ended."""
        with self.changed:
            known = self._connections.pop(connection.number, None)
        if known is not None and connection.end is None:
            self.post(Order(connection.number, "close"))

    def close(self) -> None:
        self._lose("closed")
        self._remote.kill()

    def _listen(self) -> None:
        """In a thread of its own."""
        try:
            self.name = self._open()
            self.flush()
            while self.end is None:
                self._deliver(pickle.loads(self._remote.receive()))  # our own process wrote it
        except TimeoutError:
            self._remote.kill()
            self._lose(f"no node has had room for it within {self._patience:g} seconds")
        except NodeLost as error:
            self._remote.kill()  # where it was only out of reach, it must not keep the room from the next one
            self._lose(f"lost with its node {self.name}: {error}" if self.name else f"it cannot start: {error}")
        except Exception as error:  # noqa: BLE001 - the thread's end would otherwise leave its workers unanswered
            self._remote.kill()
            self._lose(f"lost, as its node raised {type(error).__name__}: {error}")

    def _open(self) -> str:
        """The node's name, once an actor is on it."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._remote.open(self._birth, max(0.0, deadline - time.monotonic()))
            except NodeLost:
                if self.end is not None or time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)
            self._remote = self._start()
            if self.end is not None:  # it was closed meanwhile
                self._remote.kill()

    def _deliver(self, news: FromNode) -> None:
        reached = {}
        with self.changed:
            for number, one in news:
                connection = self._connections.get(number)
                if connection is None:
                    continue  # it was dropped
                if isinstance(one, End):
                    connection.end = one
                else:
                    connection.inbox.append(one)
                reached[number] = connection
            self.changed.notify_all()
        _wake(list(reached.values()))

    def _lose(self, words: str) -> None:
        with self.changed:
            if self.end is not None:
                return
            self.end = End(words, node=f"{self.name} #{self._number}")
            ended = [one for one in self._connections.values() if one.end is None]
            for connection in ended:
                connection.end = self.end
            self.changed.notify_all()
        _wake(ended)


class NodeConnection:
    """One worker of a node."""

    is_near = False

    def __init__(self, node: EnvNode, number: int) -> None:
        self._node, self.number = node, number
        self.inbox: deque[FromWorker] = deque()
        self.end: End | None = None
        self.watcher: tuple[AbstractEventLoop, Callable[[], None]] | None = None

    def send(self, *messages: ToWorker) -> None:
        self._node.post(Post(self.number, messages))

    def receive(self) -> list[FromWorker]:
        with self._node.changed:
            found = list(self.inbox)
            self.inbox.clear()
            if not found and self.end is not None:
                raise EOFError
        return found

    def wait(self, seconds: float) -> None:
        self._node.flush()  # the event loop stands still meanwhile
        with self._node.changed:
            self._node.changed.wait_for(lambda: self.inbox or self.end is not None, seconds)

    def kill(self) -> None:
        self._node.post(Order(self.number, "kill"))

    def how_it_ended(self) -> End:
        assert self.end is not None, "asked after an EOFError"
        return self.end

    def watch(self, loop: AbstractEventLoop, arrived: Callable[[], None]) -> None:
        with self._node.changed:
            self.watcher = loop, arrived
            waits = bool(self.inbox) or self.end is not None
        if waits:
            loop.call_soon(_read, [self])

    def close(self) -> None:
        self.watcher = None
        self._node.drop(self)


def _wake(connections: list[NodeConnection]) -> None:
    """Has each connection's event loop read it, by one call for all that have the same."""
    by_loop: dict[AbstractEventLoop, list[NodeConnection]] = {}
    for connection in connections:
        if (watcher := connection.watcher) is not None:
            by_loop.setdefault(watcher[0], []).append(connection)
    for loop, woken in by_loop.items():
        with suppress(RuntimeError):  # it is closed; the next one reads
            loop.call_soon_threadsafe(_read, woken)


def _read(connections: list[NodeConnection]) -> None:
    """Has each read what has arrived, and then its end, which nothing else would call for."""
    for connection in connections:
        while (watcher := connection.watcher) is not None:  # else it was closed meanwhile
            watcher[1]()
            if connection.end is None:
                break
