"""The fleet's choice of a worker: least load first, the first of equals, whatever has happened before."""

import asyncio
import random

import pytest

from turnwise.agents.decoding import Decoding
from turnwise.rollout.fleet import Fleet, GroupJob
from turnwise.types import Group, Task


class Worker:
    """Plays until it is told to end."""

    def __init__(self, places):
        self.places, self.playing = places, []

    async def play(self, job):
        end = asyncio.get_running_loop().create_future()
        self.playing.append(end)
        await end
        self.playing.remove(end)
        return Group(task=job.task, trajectories=())

    async def load(self, weights, version):
        pass


async def play_at_random(seed):
    luck = random.Random(seed)
    workers = [Worker(luck.randint(1, 4)) for _ in range(luck.randint(1, 6))]
    fleet = Fleet(workers)
    jobs = []
    for number in range(200):
        loads = [len(worker.playing) / worker.places for worker in workers]
        if min(loads) < 1 and luck.random() < 0.6:
            job = GroupJob(task=Task(id="t"), group_size=1, seed=0, index=number, decoding=Decoding())
            jobs.append(asyncio.create_task(fleet.play(job)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            now = [len(worker.playing) / worker.places for worker in workers]
            [chosen] = [place for place, (before, after) in enumerate(zip(loads, now, strict=True)) if after != before]
            assert chosen == loads.index(min(loads))
        elif busy := [worker for worker in workers if worker.playing]:
            luck.choice(luck.choice(busy).playing).set_result(None)
            for _ in range(4):
                await asyncio.sleep(0)
    assert len(fleet._offers) <= 8 * len(workers) + 1, "what is outdated does not pile up"
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_busy_worker_is_chosen_and_the_first_of_equals(seed):
    asyncio.run(play_at_random(seed))
