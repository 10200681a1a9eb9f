"""Which tasks come next: in a shuffled order, some of them replayed, and the same again from a saved state."""

from collections import Counter

import pytest

from turnwise.errors import EnvError
from turnwise.rollout import TaskSampler
from turnwise.types import Group, StopReason, Task, Trajectory

TASKS = [Task(id=str(place), seed=place) for place in range(12)]


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


def test_a_new_sampler_has_drawn_nothing():
    assert sampler("hard").state_dict() == {"position": 0, "draws": 0, "rates": {}}


def test_uniform_goes_through_all_tasks_before_any_comes_again():
    draws = sampler("uniform")
    drawn = [place for _ in range(9) for place in draws.draw(4)]
    assert [sorted(drawn[start : start + 12]) for start in (0, 12, 24)] == [list(range(12))] * 3
    draws.learn(drawn[:2], [played(0, 0.5), played(1, 0.5)])
    assert draws.state_dict()["rates"] == {}, "what it has no use for it does not keep"
    draws.load_state_dict({"position": 0, "draws": 0, "rates": {3: 0.5}})  # of a run by another rule
    assert sorted(place for _ in range(3) for place in draws.draw(4)) == list(range(12))


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
