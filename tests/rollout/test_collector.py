"""Tasks drawn, played, filtered and refilled: every episode in one batch, and every drop counted."""

import asyncio
from functools import partial

import pytest

from letters import Letters
from turnwise.agents import PolicyAgent, ScriptedAgent
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.envs.chaos import ChaosSettings, with_chaos
from turnwise.errors import EnvError
from turnwise.rollout import RolloutCollector, RolloutSettings
from turnwise.rollout.collector import make_job
from turnwise.stability import FilterSettings, select
from turnwise.types import Message, Step, Task

TASKS = [Task(id=str(place), seed=place) for place in range(12)]


class Tosses(Env):
    """Every third task is a toss, decided by episode seed; the others always pay the same."""

    async def reset(self, task, episode_seed):
        self._paid = float(episode_seed % 2) if task.seed % 3 == 0 else 1.0
        return [Message(role="user", content="go")]

    async def step(self, message):
        return Step(done=True, rewards={"paid": self._paid}, metrics={"success": self._paid})


def collector(tasks=4, responses=8, seed=0, **settings):
    render = Letters()
    engine = ScriptedEngine(lambda session, prompt: "x", render.encode_action, context_limit=64)
    rollout = RolloutSettings(groups_per_step=tasks, group_size=responses, **settings)
    return RolloutCollector(PolicyAgent(engine=engine, render=render), Tosses(), TASKS, rollout, seed=seed)


def collect(source, step=0, **filter):
    settings = FilterSettings(**filter)
    keep = partial(select, settings=settings)
    return asyncio.run(source.collect(step, keep, refill=settings.refill, progress=lambda done, total: None))


def test_without_a_filter_everything_is_learnt_from():
    batch = collect(collector())
    assert batch.kept == list(batch.groups)
    assert len(batch.groups) == 4
    assert batch.metrics()["filter/dropped"] == 0


def test_a_filter_alone_leaves_fewer_groups_of_as_many_samples():
    batch = collect(collector(tasks=12), rule="nonzero")
    assert len(batch.groups) == 12
    assert {group.task.seed % 3 for group in batch.kept} == {0}
    assert (batch.metrics()["filter/kept"], batch.metrics()["filter/dropped"]) == (4, 8)


def test_refilling_keeps_the_number_of_groups():
    """A third of the tasks spread: three rounds of four give the four that a step has."""
    batch = collect(collector(), rule="nonzero", refill=5)
    assert len(batch.kept) == 4
    assert batch.refills == 2
    assert len(batch.groups) == 12, "every episode more is in the batch"
    assert batch.metrics()["filter/refills"] == 2
    assert len({group.task.id for group in batch.groups}) == 12, "fresh tasks, not the same again"
    episode_seeds = [member.episode_seed for group in batch.groups for member in group.trajectories]
    assert len(set(episode_seeds)) == len(episode_seeds)


def test_refilling_ends_where_it_must():
    batch = collect(collector(), rule="nonzero", refill=1)
    assert (batch.refills, len(batch.groups)) == (1, 8)
    assert len(batch.kept) < 4


def test_a_quarter_of_four_times_as_many():
    batch = collect(collector(tasks=4), rule="top_fraction", keep=0.25, refill=9)
    assert (batch.refills, len(batch.groups), len(batch.kept)) == (3, 16, 4)


def test_what_is_left_over_is_dropped_and_counted():
    batch = collect(collector(tasks=12), rule="nonzero", refill=9)
    assert len(batch.kept) == 12
    spare = batch.selection.given - batch.selection.zero_variance - 12
    assert batch.metrics()["filter/dropped"] == batch.selection.zero_variance + spare


def test_progress_counts_the_episodes_of_each_round():
    shown = []
    keep = partial(select, settings=FilterSettings(rule="nonzero", refill=1))
    source = collector(tasks=2, responses=2)
    asyncio.run(source.collect(0, keep, refill=1, progress=lambda *told: shown.append(told)))
    assert shown == [(number, 4) for number in (1, 2, 3, 4)] * (len(shown) // 4)
    assert len(shown) in (4, 8)


def test_its_fleet_plays_before_the_first_batch_too():
    """An evaluation before training is played on it."""
    source = collector()
    job = make_job(Tosses(), TASKS[1], RolloutSettings(group_size=2), seed=0, index=0)
    assert [one.reward for one in asyncio.run(source.fleet.play(job)).trajectories] == [1.0, 1.0]


def test_faults_that_settings_plant_strike_what_is_sampled_for_training():
    settings = RolloutSettings(groups_per_step=1, group_size=2)
    env = with_chaos(Tosses(), ChaosSettings(crash=1.0))
    source = RolloutCollector(ScriptedAgent(replies=["x"]), env, TASKS, settings, seed=0)
    with pytest.raises(EnvError, match="every episode failed"):
        collect(source)


def test_a_batch_follows_from_seed_step_and_state():
    one, other = collector(), collector()
    assert _played(collect(one, 0)) == _played(collect(other, 0))
    later = collector()
    later.task_sampler.load_state_dict(one.task_sampler.state_dict())
    assert _played(collect(one, 1)) == _played(collect(later, 1))
    assert _played(collect(collector(seed=1), 0)) != _played(collect(collector(), 0))


def _played(batch):
    return [(group.task.id, [member.episode_seed for member in group.trajectories]) for group in batch.groups]


def test_any_agent_can_play_for_it_and_any_function_can_filter():
    """An agent without tokens, and a filter of the user's own that keeps the first group alone."""

    class First:
        kept = (0,)

        def metrics(self, refills):
            return {"filter/mine": float(refills)}

    rounds = []

    def keep_first(groups, *, most=None):
        rounds.append((len(groups), most))
        return First()

    settings = RolloutSettings(groups_per_step=3, group_size=2)
    source = RolloutCollector(ScriptedAgent(replies=["x"]), Tosses(), TASKS, settings, seed=0)
    batch = asyncio.run(source.collect(0, keep_first, refill=2, progress=lambda done, total: None))
    assert rounds == [(3, None), (6, 3), (9, 3)]
    assert batch.kept == [batch.groups[0]]
    assert batch.metrics() == {"filter/mine": 2.0}
    assert not any(member.has_tokens for group in batch.groups for member in group.trajectories)


def test_too_many_failed_episodes_end_the_step():
    """Two groups of eight, whose episodes fail by a toss: some do and some do not."""

    class Failing(Tosses):
        async def step(self, message):
            if self._paid == 0.0:
                raise ConnectionError("no simulator")
            return await super().step(message)

    def source(most):
        render = Letters()
        engine = ScriptedEngine(lambda session, prompt: "x", render.encode_action, context_limit=64)
        settings = RolloutSettings(groups_per_step=2, group_size=8, max_failures=most)
        tosses = [Task(id=str(place), seed=3 * place) for place in range(4)]
        return RolloutCollector(PolicyAgent(engine=engine, render=render), Failing(), tosses, settings, seed=0)

    failed = sum(one.failure != "" for group in collect(source(1.0)).groups for one in group.trajectories)
    assert 0 < failed < 16
    with pytest.raises(EnvError, match=f"^{failed} of 16 episodes failed.*raise rollout.max_failures above 0.01$"):
        collect(source(0.01))
