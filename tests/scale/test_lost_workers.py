"""Workers that are lost, stay away or come back: no job is lost with them, and none waits for ever."""

import asyncio

import pytest
import torch

from held_workers import TimerLoop, Worker, begin, job, run_cleanly, settle, until
from turnwise.agents import ScriptedAgent
from turnwise.envs.base import Env
from turnwise.errors import RunError
from turnwise.rollout import Fleet, LocalWorker, WorkerLost


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
        await until(lambda: one.jobs == [0, 2, 2])
        assert one.loaded == [3, 4], "what it missed"
        one.finish()
        other.finish(2)
        assert [group.task.id for group in await asyncio.gather(*plays)] == ["0", "1", "2"]
        metrics = fleet.metrics()
        assert metrics["fleet/lost"] == 1, "once, though it had two jobs"
        assert metrics["fleet/replayed"] == 2
        assert metrics["fleet/workers"] == 2

    run_cleanly(run())


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

    run_cleanly(run())


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
        held = first.ends.pop()  # of two jobs of the first worker, one learns of its death later
        first.kill()
        first.gone = False
        await settle()
        assert (fleet.lost, first.loaded) == (1, [1, 1])
        held.set_exception(WorkerLost("no process"))
        await settle()
        assert (fleet.lost, fleet.replayed) == (1, 2)
        for worker in (first, second):
            worker.finish(len(worker.ends))
            await settle()
        for worker in (first, second):
            worker.finish(len(worker.ends))
        assert len(await asyncio.gather(*plays)) == 4

    run_cleanly(run())


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

    run_cleanly(run())


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

    run_cleanly(run())


def test_a_job_that_is_cancelled_as_the_fleet_gives_up_is_cancelled():
    async def run():
        fleet = Fleet([Worker(places=1)])
        playing, waiting = begin(fleet, 0, 1)
        await settle()
        fleet._give_up()
        waiting.cancel()
        await settle()
        assert waiting.cancelled()
        playing.cancel()

    run_cleanly(run())


def test_a_worker_that_is_back_in_time_is_waited_for():
    async def run():
        one = Worker()
        fleet = Fleet([one], retry_seconds=0.001, patience=60)
        await fleet.load({}, 0)
        (play,) = begin(fleet, 0)
        await settle()
        one.kill()
        await settle()
        assert 60 in asyncio.get_running_loop().delays(), "or the fleet would never give up"
        one.gone = False
        await until(lambda: one.jobs == [0, 0])
        assert 60 not in asyncio.get_running_loop().delays()
        one.finish()
        assert (await play).task.id == "0"
        assert not fleet._returning, "returns that are over do not pile up"

    run_cleanly(run(), TimerLoop)


def test_one_worker_that_stays_away_ends_no_run_and_is_named_in_the_log(caplog):
    async def run():
        one, other = Worker(), Worker()
        fleet = Fleet([one, other], retry_seconds=0.001, patience=0.01)
        await fleet.load({}, 0)
        plays = begin(fleet, 0)
        await settle()
        one.kill()
        await asyncio.sleep(0.05)
        plays += begin(fleet, 1)
        await settle()
        other.finish(2)
        assert len(await asyncio.gather(*plays)) == 2
        await fleet.close()

    run_cleanly(run())
    assert "a rollout worker is lost, and its jobs are played again: no process" in caplog.text


def test_a_lost_worker_is_asked_again_after_a_pause():
    async def run():
        one = Worker()
        one.gone = True
        fleet = Fleet([one], retry_seconds=60)
        await fleet.load({}, 1)
        await settle()
        assert one.asked == 2, "once with all others, and once by itself"
        await fleet.close()

    run_cleanly(run())


def test_a_fleet_that_is_closed_waits_for_nothing_any_more():
    async def run():
        one = Worker()
        one.gone = True
        fleet = Fleet([one], retry_seconds=50, patience=60)
        await fleet.load({}, 1)
        await settle()
        tasks, loop = asyncio.all_tasks(), asyncio.get_running_loop()
        assert (len(tasks), loop.delays()) == (2, [50, 60])
        await fleet.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert loop.delays() == []

    run_cleanly(run(), TimerLoop)


class Nothing(Env):
    async def reset(self, task, episode_seed):
        raise NotImplementedError

    async def step(self, message):
        raise NotImplementedError


class Here(LocalWorker):
    """A worker of this process, which keeps the weights it was given."""

    def __init__(self):
        super().__init__(ScriptedAgent(), Nothing())

    async def load(self, weights, version):
        self.weights = weights


def test_a_worker_returns_with_the_weights_that_were_loaded_though_the_learner_has_gone_on():
    async def run():
        here, there = Here(), Worker()
        there.gone = True
        fleet, weights = Fleet([here, there], retry_seconds=0), {"w": torch.zeros(2)}
        await fleet.load(weights, 1)
        weights["w"] += 1
        there.gone = False
        await settle()
        assert there.weights["w"].tolist() == [0.0, 0.0]

    run_cleanly(run())


def test_a_fleet_that_cannot_be_lost_copies_no_weights():
    async def run():
        fleet, weights = Fleet([Here(), Here()]), {"w": torch.zeros(2)}
        await fleet.load(weights, 1)
        assert fleet._newest[0] is weights

    run_cleanly(run())
