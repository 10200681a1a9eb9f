"""The scheduler of rollouts: every job ends in one group, whatever happens to the workers."""

import asyncio
import pickle
from collections import Counter
from functools import partial

import pytest

from letters import Letters
from turnwise.agents import PolicyAgent, ScriptedAgent
from turnwise.agents.decoding import Decoding
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.envs.chaos import ChaosSettings, with_chaos
from turnwise.errors import EnvError, RunError
from turnwise.rollout import (
    Fleet,
    GroupJob,
    LocalWorker,
    RolloutCollector,
    RolloutSettings,
    WorkerLost,
    run_groups,
)
from turnwise.stability import FilterSettings, select
from turnwise.types import Group, Message, Step, Task

TASKS = [Task(id=str(place), seed=place) for place in range(6)]


class Coin(Env):
    """Pays by the episode's seed."""

    async def reset(self, task, episode_seed):
        self._paid = float(episode_seed % 2)
        return [Message(role="user", content="go")]

    async def step(self, message):
        return Step(done=True, rewards={"paid": self._paid}, metrics={"success": self._paid})


def job(index=0, **given):
    return GroupJob(task=TASKS[index], group_size=2, seed=7, index=index, decoding=Decoding(), **given)


class Worker:
    """Holds its jobs until it is let go, and may be killed."""

    def __init__(self, places=2):
        self.places, self.jobs, self.loaded, self.gone = places, [], [], False
        self._ends = []

    async def play(self, job):
        self.jobs.append(job.index)
        end = asyncio.get_running_loop().create_future()
        self._ends.append(end)
        await end
        return Group(task=job.task, trajectories=())

    async def load(self, weights, version):
        await asyncio.sleep(0)
        if self.gone:
            raise WorkerLost("no process")
        self.loaded.append(version)

    def finish(self, count=1):
        for _ in range(count):
            self._ends.pop(0).set_result(None)

    def kill(self):
        self.gone = True
        while self._ends:
            self._ends.pop(0).set_exception(WorkerLost("no process"))


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def begin(fleet, *indices):
    return [asyncio.ensure_future(fleet.play(job(index))) for index in indices]


def test_a_job_travels_as_it_is():
    assert pickle.loads(pickle.dumps(job())) == job()


def test_jobs_go_to_the_least_busy_worker_and_wait_in_order_for_a_place():
    async def run():
        small, large = Worker(places=1), Worker(places=2)
        fleet = Fleet([small, large])
        plays = begin(fleet, 0, 1, 2, 3, 4)
        await settle()
        assert (small.jobs, large.jobs) == ([0], [1, 2])
        large.finish()
        await settle()
        assert (small.jobs, large.jobs) == ([0], [1, 2, 3])
        small.finish()
        await settle()
        assert (small.jobs, large.jobs) == ([0, 4], [1, 2, 3])
        small.finish()
        large.finish(2)
        assert [group.task.id for group in await asyncio.gather(*plays)] == ["0", "1", "2", "3", "4"]
        assert fleet.places == 3

    asyncio.run(run())


def test_the_jobs_of_a_lost_worker_are_played_again_elsewhere_and_it_returns_with_the_newest_weights():
    async def run():
        one, other = Worker(), Worker()
        fleet = Fleet([one, other], retry_seconds=0.001)
        await fleet.load({}, 3)
        plays = begin(fleet, 0, 1, 2)
        await settle()
        assert (one.jobs, other.jobs) == ([0, 2], [1])
        one.kill()
        await settle()
        assert other.jobs == [1, 0], "the other has a place for one of them"
        await fleet.load({}, 4)
        assert (one.loaded, other.loaded) == ([3], [3, 4])
        one.gone = False
        await asyncio.sleep(0.05)
        assert one.loaded == [3, 4], "what it missed"
        await settle()
        assert one.jobs == [0, 2, 2]
        one.finish()
        other.finish(2)
        assert [group.task.id for group in await asyncio.gather(*plays)] == ["0", "1", "2"]
        metrics = fleet.metrics()
        assert metrics["fleet/lost"] == 1, "once, though it had two jobs"
        assert metrics["fleet/replayed"] == 2
        assert metrics["fleet/workers"] == 2

    asyncio.run(run())


def test_a_worker_that_is_lost_while_weights_are_loaded_holds_nobody_up():
    async def run():
        one, other = Worker(), Worker()
        one.gone = True
        fleet = Fleet([one, other], retry_seconds=10)
        await fleet.load({}, 1)
        assert (other.loaded, fleet.lost, fleet.places) == ([1], 1, 2)
        plays = begin(fleet, 0, 1)
        await settle()
        assert (one.jobs, other.jobs) == ([], [0, 1])
        other.finish(2)
        await asyncio.gather(*plays)
        await fleet.close()

    asyncio.run(run())


def test_other_failures_of_a_load_end_it():
    class Broken(Worker):
        async def load(self, weights, version):
            raise RunError("no such weight")

    with pytest.raises(RunError, match="no such weight"):
        asyncio.run(Fleet([Broken(), Worker()]).load({}, 1))


def test_late_news_of_a_loss_does_not_lose_a_worker_that_is_back():
    async def run():
        first, second = Worker(places=2), Worker(places=2)
        fleet = Fleet([first, second], retry_seconds=0)
        await fleet.load({}, 1)
        plays = begin(fleet, 0, 1, 2, 3)
        await settle()
        held = first._ends.pop()  # of two jobs of the first worker, one learns of its death later
        first.kill()
        first.gone = False
        await settle()
        assert (fleet.lost, first.loaded) == (1, [1, 1])
        held.set_exception(WorkerLost("no process"))
        await settle()
        assert (fleet.lost, fleet.replayed) == (1, 2)
        for worker in (first, second):
            worker.finish(len(worker._ends))
            await settle()
        for worker in (first, second):
            worker.finish(len(worker._ends))
        assert len(await asyncio.gather(*plays)) == 4

    asyncio.run(asyncio.wait_for(run(), 5))


def test_a_worker_that_fails_as_it_returns_ends_the_run_with_its_error():
    class Broken(Worker):
        async def load(self, weights, version):
            await super().load(weights, version)
            if len(self.loaded) > 1:
                raise RunError("no such model there")

    async def run():
        worker = Broken(places=1)
        fleet = Fleet([worker], retry_seconds=0)
        await fleet.load({}, 1)
        plays = begin(fleet, 0, 1)
        await settle()
        worker.kill()
        worker.gone = False
        for play in plays:
            with pytest.raises(RunError, match="no such model there"):
                await play
        with pytest.raises(RunError, match="no such model there"):
            await fleet.play(job(2))

    asyncio.run(asyncio.wait_for(run(), 5))


def test_a_fleet_without_workers_gives_up_after_a_while():
    async def run():
        one = Worker()
        fleet = Fleet([one], retry_seconds=0.001, patience=0.05)
        await fleet.load({}, 0)
        (play,) = begin(fleet, 0)
        await settle()
        one.kill()
        with pytest.raises(RunError, match=r"all 1 rollout workers have been gone for 0\.05 seconds"):
            await play
        await fleet.close()

    asyncio.run(run())


def test_a_worker_that_is_back_in_time_is_waited_for():
    async def run():
        one = Worker()
        fleet = Fleet([one], retry_seconds=0.001, patience=0.2)
        await fleet.load({}, 0)
        (play,) = begin(fleet, 0)
        await settle()
        one.kill()
        await asyncio.sleep(0.02)
        one.gone = False
        await asyncio.sleep(0.3)
        one.finish()
        assert (await play).task.id == "0"

    asyncio.run(run())


def test_a_job_that_is_cancelled_leaves_its_place_to_the_next():
    async def run():
        one = Worker(places=1)
        fleet = Fleet([one])
        playing, waiting, last = begin(fleet, 0, 1, 2)
        await settle()
        waiting.cancel()
        playing.cancel()
        await settle()
        assert one.jobs == [0, 2]
        last.cancel()
        await settle()
        (after,) = begin(fleet, 3)
        await settle()
        assert one.jobs == [0, 2, 3]
        after.cancel()

    asyncio.run(run())


def test_how_long_workers_were_busy_is_known():
    now = 0.0

    async def run():
        nonlocal now
        one, other = Worker(), Worker()
        fleet = Fleet([one, other], clock=lambda: now)
        plays = begin(fleet, 0, 1, 2)
        await settle()
        now = 5.0
        one.finish()
        await settle()
        now = 7.0
        one.finish()
        await settle()
        now = 10.0
        assert fleet.busy_seconds == [7.0, 10.0]
        assert fleet.metrics()["fleet/busy_seconds"] == 8.5
        other.finish()
        await asyncio.gather(*plays)

    asyncio.run(run())


def local(agent=None, env=None, **given):
    return LocalWorker(agent or ScriptedAgent(replies=["x"]), env or Coin(), **given)


def test_a_group_does_not_depend_on_who_plays_it():
    async def run():
        fleet = Fleet([local(), local()])
        plays = [
            fleet.play(GroupJob(task=task, group_size=3, seed=5, index=index, decoding=Decoding()))
            for index, task in enumerate(TASKS)
        ]
        return await asyncio.gather(*plays)

    alone = asyncio.run(run_groups(ScriptedAgent(replies=["x"]), Coin(), TASKS, group_size=3, seed=5))
    seeds = [[one.episode_seed for one in group.trajectories] for group in alone]
    assert [[one.episode_seed for one in group.trajectories] for group in asyncio.run(run())] == seeds
    assert [[one.reward for one in group.trajectories] for group in asyncio.run(run())] == [
        [one.reward for one in group.trajectories] for group in alone
    ]


def test_a_batch_of_a_fleet_equals_that_of_one_process():
    def batch(fleet):
        settings = RolloutSettings(groups_per_step=3, group_size=2)
        source = RolloutCollector(ScriptedAgent(replies=["x"]), Coin(), TASKS, settings, seed=0, fleet=fleet)
        shown = []
        keep = FilterSettings(rule="nonzero", refill=2)
        found = asyncio.run(
            source.collect(
                0, partial(select, settings=keep), refill=keep.refill, progress=lambda *told: shown.append(told)
            )
        )
        played = [(group.task.id, [one.episode_seed for one in group.trajectories]) for group in found.groups]
        return played, found.selection.kept, [told for told in shown if told[0] == told[1]]

    assert batch(Fleet([local(), local()])) == batch(None)


def test_an_evaluation_is_decoded_as_its_job_asks_and_not_struck_by_faults():
    asked = []

    class Engine(ScriptedEngine):
        async def generate(self, session, prompt_ids, sampling):
            asked.append(sampling.temperature)
            return await super().generate(session, prompt_ids, sampling)

    async def run():
        engine = Engine(lambda session, prompt: (5, 0), lambda text: text)
        worker = local(PolicyAgent(engine=engine, render=Letters()), with_chaos(Coin(), ChaosSettings(crash=1.0)))
        await worker.load({}, 9)
        fleet = Fleet([worker])
        trained = await fleet.play(job())
        greedy = Decoding(temperature=0)
        evaluated = await fleet.play(
            GroupJob(task=TASKS[0], group_size=2, seed=1, index=0, decoding=greedy, faults=False)
        )
        return trained, evaluated

    trained, evaluated = asyncio.run(run())
    assert Counter(one.stop.value for one in trained.trajectories) == {"env_failed": 2}
    assert Counter(one.stop.value for one in evaluated.trajectories) == {"done": 2}
    assert asked == [1, 1, 0, 0]
    assert {turn.version for one in evaluated.trajectories for turn in one.turns} == {9}


def test_a_mistake_in_one_episode_is_one_line():
    class Wrong(Coin):
        def spawn_for(self, task):
            raise EnvError("no such level")

    async def run():
        await asyncio.gather(*(begin(Fleet([local(env=Wrong())]), 0)))

    with pytest.raises(EnvError, match="no such level"):
        asyncio.run(run())


def test_no_more_episodes_are_under_way_than_allowed():
    under_way, most = 0, 0

    class Counted(Coin):
        async def step(self, message):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.005)
            under_way -= 1
            return await super().step(message)

    async def run():
        fleet = Fleet([local(env=Counted(), concurrency=3)])
        await asyncio.gather(*begin(fleet, 0, 1, 2, 3))

    asyncio.run(run())
    assert most == 3
