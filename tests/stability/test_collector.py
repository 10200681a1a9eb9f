"""Tasks drawn, played, filtered and refilled: by whom, how often, and never silently."""

import asyncio
from collections import Counter

import pytest

from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.rollout import Player, RolloutSettings, TaskSampler
from turnwise.stability import FilterSettings, Supply
from turnwise.types import Group, Message, Step, StopReason, Task, Trajectory

TASKS = [Task(id=str(place), seed=place) for place in range(12)]


class Letters:
    """A renderer of one id per letter."""

    stop_ids = (0,)

    def start(self, messages, tools):
        return (1, 2)

    def extend(self, action_ids, messages):
        return (3,)

    def parse(self, action_ids):
        return Message(role="assistant", content="x")

    def write(self, message):
        return message.content

    def encode_action(self, text):
        return (*map(ord, text), 0)

    def decode(self, ids):
        return ""


class Tosses(Env):
    """Every third task is a toss, decided by episode seed; the others always pay the same."""

    async def reset(self, task, episode_seed):
        self._paid = float(episode_seed % 2) if task.seed % 3 == 0 else 1.0
        return [Message(role="user", content="go")]

    async def step(self, message):
        return Step(done=True, rewards={"paid": self._paid}, metrics={"success": self._paid})


def supply(tasks=4, responses=8, seed=0, **settings):
    render = Letters()
    engine = ScriptedEngine(lambda session, prompt: "x", render.encode_action, context_limit=64)
    rollout = RolloutSettings(groups_per_step=tasks, group_size=responses, **settings)
    return Supply(Player(engine=engine, render=render), Tosses(), TASKS, rollout, seed=seed)


def sample(source, step=0, **filter):
    return asyncio.run(source.sample(step, FilterSettings(**filter), lambda done, total: None))


def test_without_a_filter_everything_is_learnt_from():
    lot = sample(supply())
    assert lot.kept == list(lot.groups)
    assert len(lot.groups) == 4
    assert lot.metrics()["filter/dropped"] == 0


def test_a_filter_alone_leaves_fewer_groups_of_as_many_samples():
    lot = sample(supply(tasks=12), rule="nonzero")
    assert len(lot.groups) == 12
    assert {group.task.seed % 3 for group in lot.kept} == {0}
    assert (lot.metrics()["filter/kept"], lot.metrics()["filter/dropped"]) == (4, 8)


def test_refilling_keeps_the_number_of_groups():
    """A third of the tasks spread: three rounds of four give the four that a step has."""
    lot = sample(supply(), rule="nonzero", refill=5)
    assert len(lot.kept) == 4
    assert lot.refills == 2
    assert len(lot.groups) == 12, "every episode more is in the lot"
    assert lot.metrics()["filter/refills"] == 2
    assert len({group.task.id for group in lot.groups}) == 12, "fresh tasks, not the same again"
    episode_seeds = [member.episode_seed for group in lot.groups for member in group.trajectories]
    assert len(set(episode_seeds)) == len(episode_seeds)


def test_refilling_ends_where_it_must():
    lot = sample(supply(), rule="nonzero", refill=1)
    assert (lot.refills, len(lot.groups)) == (1, 8)
    assert len(lot.kept) < 4


def test_a_quarter_of_four_times_as_many():
    lot = sample(supply(tasks=4), rule="top_fraction", keep=0.25, refill=9)
    assert (lot.refills, len(lot.groups), len(lot.kept)) == (3, 16, 4)


def test_what_is_left_over_is_dropped_and_counted():
    lot = sample(supply(tasks=12), rule="nonzero", refill=9)
    assert len(lot.kept) == 12
    spare = lot.selection.given - lot.selection.flat - 12
    assert lot.metrics()["filter/dropped"] == lot.selection.flat + spare


def test_a_lot_follows_from_seed_step_and_state():
    one, other = supply(), supply()
    assert _played(sample(one, 0)) == _played(sample(other, 0))
    later = supply()
    later.sampler.load_state_dict(one.sampler.state_dict())
    assert _played(sample(one, 1)) == _played(sample(later, 1))
    assert _played(sample(supply(seed=1), 0)) != _played(sample(supply(), 0))


def _played(lot):
    return [(group.task.id, [member.episode_seed for member in group.trajectories]) for group in lot.groups]


def played(place, rate, of=10):
    """A group in which `rate` of the members succeed."""
    won = round(rate * of)
    members = [
        Trajectory(task=TASKS[place], turns=(), stop=StopReason.DONE, metrics={"success": float(number < won)})
        for number in range(of)
    ]
    return Group(task=TASKS[place], trajectories=tuple(members))


def sampler(rule, replay=0.5, seed=0, tasks=TASKS):
    return TaskSampler(tasks, rule=rule, replay=replay, seed=seed)


def test_uniform_goes_through_all_tasks_before_any_comes_again():
    draws = sampler("uniform")
    drawn = [place for _ in range(9) for place in draws.draw(4)]
    assert [sorted(drawn[start : start + 12]) for start in (0, 12, 24)] == [list(range(12))] * 3
    draws.learn(drawn[:2], [played(0, 0.5), played(1, 0.5)])
    assert draws.state_dict()["rates"] == {}, "what it has no use for it does not keep"


def _weigh(rule, rates, draws=400):
    chosen = sampler(rule)
    chosen.learn(list(rates), [played(place, rate) for place, rate in rates.items()])
    return Counter(place for _ in range(draws) for place in chosen.draw(2)[1:])


def test_curriculum_plays_again_what_is_solved_sometimes():
    drawn = _weigh("curriculum", {0: 0.0, 1: 0.5, 2: 1.0})
    # Weights .05, .30 and .05: three in four, with a standard deviation of 2%.
    assert drawn[1] / 400 == pytest.approx(0.75, abs=0.07)
    assert min(drawn[0], drawn[2]) > 0, "nothing is out of reach for good"


def test_hard_plays_again_what_is_seldom_solved():
    drawn = _weigh("hard", {0: 0.0, 1: 0.5, 2: 1.0})
    # Weights 1.05, .55 and .05.
    assert drawn[0] / 400 == pytest.approx(1.05 / 1.65, abs=0.08)
    assert drawn[1] / 400 == pytest.approx(0.55 / 1.65, abs=0.08)


@pytest.mark.parametrize("rule", ["curriculum", "hard"])
def test_a_share_is_played_again_as_soon_as_there_is_something(rule):
    draws = sampler(rule, replay=0.5)
    first = draws.draw(4)
    assert len(set(first)) == 4, "nothing is known yet: all fresh"
    draws.learn(first, [played(place, 0.5) for place in first])
    second = draws.draw(4)
    assert set(second[2:]) <= set(first)
    assert not set(second[:2]) & set(first), "the rest goes on through the tasks"


def test_newer_rates_weigh_more_than_older_ones():
    draws = sampler("hard")
    for rate in (0.0, 1.0, 1.0):
        draws.learn([3], [played(3, rate)])
    assert draws.state_dict()["rates"] == {3: 0.75}


def test_episodes_that_failed_say_nothing_of_a_task():
    failed = Group(task=TASKS[0], trajectories=(Trajectory(task=TASKS[0], turns=(), stop=StopReason.ENV_FAILED),))
    draws = sampler("hard")
    draws.learn([0], [failed])
    assert draws.state_dict()["rates"] == {}


@pytest.mark.parametrize("rule", ["uniform", "curriculum", "hard"])
def test_a_sampler_goes_on_from_its_state(rule):
    one, other = sampler(rule), sampler(rule)

    def go(draws, steps):
        drawn = []
        for _ in range(steps):
            places = draws.draw(3)
            draws.learn(places, [played(place, place / 12) for place in places])
            drawn.append(places)
        return drawn

    go(one, 5)
    other.load_state_dict(one.state_dict())
    assert go(one, 5) == go(other, 5)
    assert go(sampler(rule), 5) != go(sampler(rule, seed=1), 5)


def test_no_tasks_are_an_error_of_one_line():
    with pytest.raises(EnvError, match="there is nothing to sample"):
        sampler("uniform", tasks=[])
