"""Nodes with environment workers, in this process: what Ray does for a run, done by a thread for each."""

import asyncio
import threading
from concurrent.futures import CancelledError, Future

from turnwise.cluster.envs.actor import EnvActor
from turnwise.cluster.envs.node import NodeLost
from turnwise.cluster.envs.nursery import NodeNursery, Room


class NodeHere:
    """An actor in a thread; `lose()` ends it as the loss of its node would. Without `room` it does not start."""

    def __init__(self, room: bool = True) -> None:
        self._room = threading.Event()
        if room:
            self._room.set()
        self.actor = EnvActor(None)
        self.sends: list[int] = []
        """The sizes of what was sent."""
        self._loop = asyncio.new_event_loop()
        self._calls: set[Future] = set()
        self._lost = self.killed = False
        self._guard = threading.Lock()
        self._stopped, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give_room(self) -> None:
        self._room.set()

    def open(self, birth, seconds):
        if not self._room.wait(seconds):
            raise TimeoutError
        return self._result(self.actor.open(birth))

    def send(self, number, orders):
        self.sends.append(len(orders))
        with self._guard:
            if not self._lost:
                asyncio.run_coroutine_threadsafe(self.actor.send(number, orders), self._loop)

    def receive(self):
        return self._result(self.actor.receive())

    def kill(self):
        self.killed = True
        self.lose()

    def lose(self):
        """Its code stops where it is, then its processes end."""
        with self._guard:
            already, self._lost = self._lost, True
        if already:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._stopped.wait()
        for call in list(self._calls):
            call.cancel()
        for worker in self.actor._workers.values():
            worker.close()
        if self.actor._nursery is not None:
            self.actor._nursery.close()
        self._over.set()
        self._thread.join()

    def _run(self):
        self._loop.run_forever()
        self._stopped.set()
        self._over.wait()
        self._loop.run_until_complete(self._end_tasks())
        self._loop.close()

    async def _end_tasks(self):
        await asyncio.sleep(0)  # those that were to begin
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _result(self, work):
        with self._guard:
            if self._lost:
                work.close()
                raise NodeLost("lost by the test")
            call = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except CancelledError:
            raise NodeLost("lost by the test") from None
        finally:
            self._calls.discard(call)


class Cluster:
    """`Cluster(2, 2)`: two nodes with room for two workers each. `nodes` are all that there were, in order."""

    def __init__(self, *rooms: int, patience: float = 60.0) -> None:
        self._rooms, self._patience = rooms, patience
        self.nodes: list[NodeHere] = []
        self.has_room = True
        """Whether there is a machine for a node that is made from now on."""

    def open(self, birth, settings=None):
        self.nursery = NodeNursery(birth, [Room(room, self._make) for room in self._rooms], patience=self._patience)
        return self.nursery

    def _make(self):
        self.nodes.append(NodeHere(self.has_room))
        return self.nodes[-1]
