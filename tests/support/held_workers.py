"""Rollout workers whose jobs end when a test says so, and which may be killed."""

import asyncio

from turnwise.agents.decoding import Decoding
from turnwise.rollout import GroupJob, WorkerLost
from turnwise.types import Group, Task

TASKS = [Task(id=str(place), seed=place) for place in range(6)]


def job(index=0, **given):
    return GroupJob(task=TASKS[index % len(TASKS)], group_size=2, seed=7, index=index, decoding=Decoding(), **given)


class Worker:
    """Holds its jobs until it is let go, and may be killed."""

    def __init__(self, places=2):
        self.places, self.jobs, self.loaded, self.gone = places, [], [], False
        self.asked = 0
        """How often it was given weights, or should have been."""
        self.ends = []

    async def play(self, job):
        self.jobs.append(job.index)
        end = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        await end
        return Group(task=job.task, trajectories=())

    async def load(self, weights, version):
        self.asked += 1
        await asyncio.sleep(0)
        if self.gone:
            raise WorkerLost("no process")
        self.loaded.append(version)
        self.weights = weights

    def finish(self, count=1):
        for _ in range(count):
            self.ends.pop(0).set_result(None)

    def kill(self):
        self.gone = True
        while self.ends:
            self.ends.pop(0).set_exception(WorkerLost("no process"))


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition):
    """Waits for what others bring about, however busy the machine is."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class TimerLoop(asyncio.SelectorEventLoop):
    """An event loop that remembers its timers: `delays()` of those that are still to come."""

    def __init__(self):
        super().__init__()
        self._timers = []

    def call_later(self, delay, callback, *args, context=None):
        self._timers.append((delay, super().call_later(delay, callback, *args, context=context)))
        return self._timers[-1][1]

    def delays(self):
        return sorted(delay for delay, timer in self._timers if not timer.cancelled())


def begin(fleet, *indices):
    return [asyncio.ensure_future(fleet.play(job(index))) for index in indices]


def run_cleanly(coroutine, loop_factory=None):
    """What it returns, in time; nothing may have failed in a callback, which asyncio would only log."""
    failures = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with asyncio.timeout(20):
            return await coroutine

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        result = runner.run(watched())
    assert not failures
    return result
