"""The scheduler of rollouts: every job ends in one group, whatever happens to the workers."""

import asyncio
import pickle
import random
from collections import Counter
from functools import partial

import pytest

from held_workers import TASKS, Worker, begin, job, run_cleanly, settle
from letters import Letters
from turnwise.agents import PolicyAgent, ScriptedAgent
from turnwise.agents.decoding import Decoding
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.envs.chaos import ChaosSettings, with_chaos
from turnwise.errors import EnvError
from turnwise.ledger import Ledger
from turnwise.rollout import (
    Fleet,
    GroupJob,
    Limits,
    LocalWorker,
    RolloutCollector,
    RolloutSettings,
    run_groups,
)
from turnwise.rollout.fleet_groups import fleet_groups
from turnwise.stability import FilterSettings, select
from turnwise.types import Message, Step


class Coin(Env):
    """Pays by the episode's seed."""

    async def reset(self, task, episode_seed):
        self._paid = float(episode_seed % 2)
        return [Message(role="user", content="go")]

    async def step(self, message):
        return Step(done=True, rewards={"paid": self._paid}, metrics={"success": self._paid})


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

    run_cleanly(run())


@pytest.mark.parametrize("seed", range(2))
def test_every_job_of_a_long_run_goes_to_the_least_busy_worker_the_first_of_equals(seed):
    """Beside a scheduler that looks at all workers for each job; hundreds of jobs make most offers outdated."""
    draw = random.Random(seed)

    async def run():
        workers = [Worker(places) for places in (1, 3, 2)]
        fleet = Fleet(workers)
        for index in range(200):
            free = [one for one in workers if len(one.ends) < one.places]
            expected = min(free, key=lambda one: len(one.ends) / one.places)
            begin(fleet, index)
            await settle()
            assert expected.jobs[-1:] == [index]
            while all(len(one.ends) == one.places for one in workers) or (draw.random() < 0.5 and any_busy(workers)):
                draw.choice([one for one in workers if one.ends]).finish()
                await settle()

    run_cleanly(run())


def any_busy(workers):
    return any(one.ends for one in workers)


def test_a_place_that_comes_as_its_job_is_cancelled_goes_to_the_next():
    async def run():
        one = Worker(places=1)
        playing, waiting, last = begin(Fleet([one]), 0, 1, 2)
        await settle()
        one.finish()
        asyncio.get_running_loop().call_soon(waiting.cancel)  # when it has its place, and has not taken it yet
        await settle()
        assert one.jobs == [0, 2]
        assert waiting.cancelled()
        one.finish()
        await asyncio.gather(playing, last)

    run_cleanly(run())


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

    run_cleanly(run())


def test_how_long_workers_were_busy_is_known():
    now = 1.0

    async def run():
        nonlocal now
        one, other = Worker(), Worker()
        fleet = Fleet([one, other], clock=lambda: now)
        now = 2.0
        plays = begin(fleet, 0, 1, 2)
        await settle()
        now = 5.0
        one.finish()
        await settle()
        now = 7.0
        one.finish()
        await settle()
        now = 10.0
        assert fleet.busy_seconds == [5.0, 8.0]
        assert fleet.metrics()["fleet/busy_seconds"] == 6.5
        other.finish()
        await asyncio.gather(*plays)

    run_cleanly(run())


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

    alone = run_cleanly(run_groups(ScriptedAgent(replies=["x"]), Coin(), TASKS, group_size=3, seed=5))
    seeds = [[one.episode_seed for one in group.trajectories] for group in alone]
    assert [[one.episode_seed for one in group.trajectories] for group in run_cleanly(run())] == seeds
    assert [[one.reward for one in group.trajectories] for group in run_cleanly(run())] == [
        [one.reward for one in group.trajectories] for group in alone
    ]


def test_a_batch_of_a_fleet_equals_that_of_one_process():
    def batch(fleet):
        settings = RolloutSettings(groups_per_step=3, group_size=2)
        source = RolloutCollector(ScriptedAgent(replies=["x"]), Coin(), TASKS, settings, seed=0, fleet=fleet)
        shown = []
        keep = FilterSettings(rule="nonzero", refill=2)
        found = run_cleanly(
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

    trained, evaluated = run_cleanly(run())
    assert Counter(one.stop.value for one in trained.trajectories) == {"env_failed": 2}
    assert Counter(one.stop.value for one in evaluated.trajectories) == {"done": 2}
    assert asked == [1, 1, 0, 0]
    assert {turn.version for one in evaluated.trajectories for turn in one.turns} == {9}


def test_an_evaluation_on_a_fleet_shows_its_progress_and_is_charged_and_counted(caplog):
    class Failing(Coin):
        async def reset(self, task, episode_seed):
            if task.id == "1":
                raise ConnectionError("no simulator")
            return await super().reset(task, episode_seed)

    shown, ledger = [], Ledger()
    groups = run_cleanly(
        fleet_groups(
            Fleet([local(env=with_chaos(Failing(), ChaosSettings(crash=1.0)))]),
            Decoding(),
            TASKS[:3],
            group_size=2,
            seed=5,
            ledger=ledger,
            progress=lambda *told: shown.append(told),
        )
    )
    assert shown == [(2, 6), (4, 6), (6, 6)]
    assert [group.task.id for group in groups] == ["0", "1", "2"]
    assert [[one.stop.value for one in group.trajectories] for group in groups] == [
        ["done"] * 2,
        ["env_failed"] * 2,
        ["done"] * 2,
    ]
    assert "2 of 6 episodes failed" in caplog.text
    assert ledger.close_step().seconds["environment"] > 0


def test_a_mistake_in_one_episode_is_one_line():
    class Wrong(Coin):
        def spawn_for(self, task):
            raise EnvError("no such level")

    async def run():
        await asyncio.gather(*(begin(Fleet([local(env=Wrong())]), 0)))

    with pytest.raises(EnvError, match="no such level"):
        run_cleanly(run())


def test_a_worker_has_as_many_places_as_its_agent_plays_at_once_and_keeps_to_its_limits():
    class Endless(Coin):
        async def step(self, message):
            return Step(messages=(Message(role="user", content="on"),))

    class One(ScriptedAgent):
        concurrency = 1

    assert [local(One(replies=["x"])).places, local(concurrency=3).places] == [1, 3]
    assert local(One(replies=["x"]), concurrency=3).places == 1
    worker = local(ScriptedAgent(replies=["x"] * 9), Endless(), limits=Limits(max_turns=2))
    assert [len(one.turns) for one in run_cleanly(worker.play(job())).trajectories] == [2, 2]


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

    run_cleanly(run())
    assert most == 3
