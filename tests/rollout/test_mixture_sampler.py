"""Which environments a step plays: by weight, by success, from when on; and the same again from a saved state."""

import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.envs.mixture import EntryOptions
from turnwise.rollout import TaskSampler
from turnwise.rollout.mixture_sampler import MixtureSampler, share_out
from turnwise.types import Group, StopReason, Task, Trajectory

SIZES = {"a": 5, "b": 7, "c": 11}


def make(rule="fixed", weights=(2, 1, 1), task_rule="uniform", **options):
    """A mixture of a, b and c; `options` are those of one environment: `c={"opens_after": {"a": 0.5}}`."""
    tasks = {name: [Task(id=f"{name}/{n}", env=name) for n in range(size)] for name, size in SIZES.items()}
    samplers = {
        name: TaskSampler(some, rule=task_rule, replay=0.5, seed=place)
        for place, (name, some) in enumerate(tasks.items())
    }
    entries = {
        name: EntryOptions(weight=weight, **options.get(name, {})) for name, weight in zip(SIZES, weights, strict=True)
    }
    return MixtureSampler(samplers, entries, rule=rule)


def play(sampler, count, rates, reports=True):
    """Draws and plays groups of ten, in which environments succeed at these rates."""
    return Counter(task.env for task in play_tasks(sampler, count, rates, reports))


def play_tasks(sampler, count, rates, reports=True):
    places = sampler.draw(count)
    groups = []
    for task in map(sampler.task, places):
        won = round(10 * rates.get(task.env, 0.0))
        metrics = [{"success": float(member < won)} if reports else {} for member in range(10)]
        members = [Trajectory(task=task, turns=(), stop=StopReason.DONE, metrics=each) for each in metrics]
        groups.append(Group(task=task, trajectories=tuple(members)))
    sampler.learn(places, groups)
    return [group.task for group in groups]


def test_fixed_weights_are_met_to_the_group():
    sampler = make()
    assert [play(sampler, 4, {"a": 1.0}) for _ in range(3)] == [{"a": 2, "b": 1, "c": 1}] * 3
    assert sampler.shares == {"a": 0.5, "b": 0.25, "c": 0.25}, "success changes nothing"


def test_fractions_of_a_group_are_owed_until_they_make_one():
    sampler = make(weights=(5, 2, 1))
    drawn = [play(sampler, 2, {}) for _ in range(4)]
    assert sum(drawn, Counter()) == {"a": 5, "b": 2, "c": 1}
    assert drawn[0] == {"a": 1, "b": 1}, "a is owed 1.25 and b .5: a, then b"


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=3, max_size=3), st.lists(st.integers(1, 9), max_size=12))
def test_no_environment_is_a_whole_group_ahead(weights, counts):
    sampler, had, total = make(weights=weights), Counter(), 0
    for count in counts:
        had += Counter(sampler.task(place).env for place in sampler.draw(count))
        total += count
        for name, weight in zip(SIZES, weights, strict=True):
            assert had[name] < Fraction(weight * total, sum(weights)) + 1 + Fraction(1, 10**9)


def test_each_environment_goes_through_all_its_tasks():
    sampler = make(weights=(1, 1, 1))
    drawn = [sampler.task(place).id for _ in range(11) for place in sampler.draw(3)]
    assert set(drawn) == {f"{name}/{n}" for name, size in SIZES.items() for n in range(size)}
    assert all(Counter(drawn)[f"a/{n}"] >= 2 for n in range(5)), "a small one begins again"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fixed", (1.0, 1.0, 1.0)),
        ("curriculum", (0.1, 0.1 + 0.9 * 4 * 0.25, 0.1)),  # of rates 0, .5 and 1
        ("hard", (1.0, 0.55, 0.1)),
    ],
)
def test_shares_follow_the_rule_by_hand(rule, expected):
    sampler = make(rule, weights=(2, 1, 1))
    play(sampler, 4, {"a": 0.0, "b": 0.5, "c": 1.0})
    wanted = [weight * factor for weight, factor in zip((2, 1, 1), expected, strict=True)]
    assert list(sampler.shares.values()) == pytest.approx([one / sum(wanted) for one in wanted])


def test_success_is_averaged_over_steps():
    sampler = make("hard", weights=(1, 1, 1))
    play(sampler, 3, {"a": 1.0})
    assert play(sampler, 3, {})["a"] == 0, "it is owed a tenth of a group a step"
    assert play(sampler, 30, {"a": 0.0})["a"] > 0
    assert sampler.metrics()["rollout/env=a/success_average"] == pytest.approx(0.8)
    assert sampler.metrics()["rollout/env=a/share"] == pytest.approx(0.28 / 2.28)


def test_each_environment_learns_how_its_own_tasks_went():
    sampler, rates = make(weights=(1, 1, 1), task_rule="hard"), {"a": 1.0, "b": 0.5, "c": 0.0}
    tasks = play_tasks(sampler, 6, rates)
    learnt = sampler.state_dict()["samplers"]
    assert {f"{env}/{own}": rate for env in SIZES for own, rate in learnt[env]["rates"].items()} == {
        task.id: rates[task.env] for task in tasks
    }


def test_what_reports_no_success_keeps_its_weight():
    sampler = make("curriculum", weights=(1, 1, 1))
    play(sampler, 3, {}, reports=False)
    assert sampler.shares == dict.fromkeys(SIZES, pytest.approx(1 / 3))
    play(sampler, 3, {"a": 0.5})
    play(sampler, 3, {}, reports=False)  # it has reported before: none succeeded
    assert sampler.metrics()["rollout/env=a/success_average"] == pytest.approx(0.4)


def test_what_was_not_played_yet_keeps_its_weight():
    sampler = make("hard", weights=(1, 1, 1))
    play(sampler, 1, {"a": 1.0})
    assert list(sampler.shares.values()) == pytest.approx([0.1 / 2.1, 1 / 2.1, 1 / 2.1])


def test_an_environment_reports_success_when_some_of_its_episodes_do():
    sampler = make()
    places = sampler.draw(1)
    task = sampler.task(places[0])
    members = [Trajectory(task=task, turns=(), stop=StopReason.DONE, metrics=each) for each in ({"success": 1.0}, {})]
    sampler.learn(places, [Group(task=task, trajectories=tuple(members))])
    assert sampler.metrics()["rollout/env=a/success_average"] == 0.5


def test_failed_episodes_say_nothing_of_success():
    sampler = make("hard")
    places = sampler.draw(1)
    task = sampler.task(places[0])
    broken = Trajectory(task=task, turns=(), stop=StopReason.ENV_FAILED)
    sampler.learn(places, [Group(task=task, trajectories=(broken,))])
    assert not any("success_average" in name for name in sampler.metrics())


def test_an_environment_opens_when_others_are_solved_and_stays_open():
    sampler = make(weights=(1, 1, 1), b={"opens_after": {"a": 0.75}}, c={"opens_after": {"a": 0.5, "b": 0.5}})
    assert sampler.shares == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert play(sampler, 4, {"a": 0.7}) == {"a": 4}
    assert play(sampler, 4, {"a": 1.0}) == {"a": 4}, "its average was .7, now it is .76"
    assert play(sampler, 4, {"a": 0.0, "b": 0.5}) == {"a": 2, "b": 2}, "and c opens, though a is at .608 now"
    assert play(sampler, 6, {"a": 0.0}) == {"a": 2, "b": 2, "c": 2}
    assert play(sampler, 6, {"a": 0.0}) == {"a": 2, "b": 2, "c": 2}, "below what opened them, they stay open"


@pytest.mark.parametrize("task_rule", ["uniform", "hard"])
def test_a_restored_sampler_draws_what_the_first_would_have(task_rule):
    options = {"task_rule": task_rule, "weights": (5, 3, 1), "b": {"opens_after": {"a": 0.2}}}
    first, rates = make("curriculum", **options), {"a": 0.3, "b": 0.9, "c": 0.5}
    for count in (7, 5, 6):
        play(first, count, rates)
    state = first.state_dict()
    second = make("curriculum", **options)
    second.load_state_dict(state)
    assert second.state_dict() == state
    json.dumps({name: part for name, part in state.items() if name != "samplers"})  # plain data
    for count in (4, 9, 3):
        before = first.state_dict()["owed"]
        assert second.state_dict()["owed"] == before
        assert play(second, count, rates) == play(first, count, rates)
        assert second.shares == first.shares
    assert second.draw(5) == first.draw(5)


@pytest.mark.parametrize(
    ("total", "weights", "parts"),
    [
        (10, {"a": 1, "b": 1}, {"a": 5, "b": 5}),
        (10, {"a": 2, "b": 1}, {"a": 7, "b": 3}),
        (3, {"a": 1, "b": 1}, {"a": 2, "b": 1}),
        (2, {"a": 5, "b": 5, "c": 1}, {"a": 1, "b": 1, "c": 0}),
        (0, {"a": 1}, {"a": 0}),
    ],
)
def test_whole_parts_sum_to_the_total(total, weights, parts):
    assert share_out(total, weights) == parts
