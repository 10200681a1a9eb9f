"""Groups are chosen by the spread of what their whole trajectories were paid, and what is dropped is counted."""

import statistics
from dataclasses import replace

import pytest

from turnwise.errors import ConfigError
from turnwise.settings import parse_settings
from turnwise.stability import FilterSettings, select
from turnwise.types import Group, StopReason, Task, Trajectory, Turn


def group(*rewards, failed=()):
    """Each reward is what an episode was paid, turn by turn."""
    task = Task(id="t")
    members = [
        Trajectory(
            task=task,
            turns=tuple(
                Turn(
                    context_ids=(1,),
                    action_ids=(2,),
                    logprobs=(0.0,),
                    rewards={"paid": paid},
                    opens_row=place == 0,
                )
                for place, paid in enumerate(one if isinstance(one, tuple) else (one,))
            ),
            stop=StopReason.ENV_FAILED if place in failed else StopReason.DONE,
        )
        for place, one in enumerate(rewards)
    ]
    return Group(task=task, trajectories=tuple(members))


# Deviations: 0, 1, 3, 0, 2, 4.
SPREAD = [group(5, 5), group(0, 2), group(-3, 3), group(0, 0), group(1, 5), group(10, 2)]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"rule": "none"}, (0, 1, 2, 3, 4, 5)),
        ({"rule": "nonzero"}, (1, 2, 4, 5)),
        ({"rule": "top_fraction", "keep": 0.25}, (2, 5)),  # 1.5 groups, rounded up
        ({"rule": "top_fraction", "keep": 0.5}, (2, 4, 5)),
        ({"rule": "top_fraction", "keep": 1.0}, (0, 1, 2, 3, 4, 5)),
        ({"rule": "top_p", "mass": 0.4}, (5,)),  # 4 of 10
        ({"rule": "top_p", "mass": 0.41}, (2, 5)),
        ({"rule": "top_p", "mass": 0.9}, (2, 4, 5)),  # 4 + 3 + 2 of 10
        ({"rule": "top_p", "mass": 1.0}, (1, 2, 4, 5)),  # a spread of zero holds nothing
    ],
    ids=str,
)
def test_rules_by_hand(settings, kept):
    selection = select(SPREAD, FilterSettings(**settings))
    assert selection.kept == kept
    assert selection.metrics(refills=2) == {
        "filter/kept": len(kept),
        "filter/dropped": 6 - len(kept),
        "filter/zero_variance": 2,
        "filter/refills": 2,
        "filter/nothing_left": 0,
    }


def test_what_counts_is_the_sum_over_the_episode():
    """Paid differently on the way and equally in all: such groups do not spread, whatever their sums round to."""
    same = group((0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.6,))
    other = group((0.1, 0.2), (0.4,))
    assert select([same, other], FilterSettings(rule="nonzero")).kept == (1,)


def test_episodes_that_failed_say_nothing():
    played = group(1.0, 1.0, 0.0, failed={2})
    assert statistics.pstdev([1.0, 1.0, 0.0]) > 0
    nobody = group(1.0, 0.0, failed={0, 1})
    selection = select([played, nobody, group(0, 1)], FilterSettings(rule="nonzero"))
    assert (selection.kept, selection.zero_variance) == ((2,), 2)


@pytest.mark.parametrize("rule", ["nonzero", "top_p"])
def test_everything_may_be_dropped_and_that_is_said(rule):
    selection = select([group(1, 1), group(0, 0)], FilterSettings(rule=rule))
    assert selection.kept == ()
    assert selection.metrics()["filter/nothing_left"] == 1
    assert selection.metrics()["filter/dropped"] == 2


def test_no_more_than_asked_for():
    """The widest stay; where the rule does not rank, the first do."""
    assert select(SPREAD, FilterSettings(rule="top_p", mass=1.0), most=2).kept == (2, 5)
    assert select(SPREAD, FilterSettings(rule="nonzero"), most=2).kept == (1, 2)


def of(env, *rewards):
    """A group of an environment in a mixture."""
    return replace(group(*rewards), task=Task(id="t", env=env))


@pytest.mark.parametrize(
    ("solved", "kept"),
    [
        (0, {"a": 2, "b": 2}),
        (3, {"a": 3, "b": 1}),  # one of b's four varies, so the place that it cannot fill is a's
        (4, {"a": 4, "b": 0}),
    ],
)
def test_what_an_environment_cannot_fill_goes_to_the_others(solved, kept):
    varying = [of("a", 0, 1) for _ in range(4)] + [of("b", 0, 1) for _ in range(4 - solved)]
    groups = varying + [of("b", 1, 1) for _ in range(solved)]
    selection = select(groups, FilterSettings(rule="nonzero", refill=10), most=4)
    assert {name: len(own.kept) for name, own in selection.by_env.items()} == kept
    assert len(selection.kept) == 4
    assert all(groups[place] in varying for place in selection.kept)


def test_ties_go_to_the_earlier():
    assert select([group(0, 1)] * 8, FilterSettings(rule="top_fraction")).kept == (0, 1)


def test_a_fraction_of_whole_groups_is_that_many():
    assert len(select([group(0, 1)] * 100, FilterSettings(rule="top_fraction", keep=0.07)).kept) == 7


def test_nothing_to_refill_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"drops nothing that could be refilled") as error:
        parse_settings(FilterSettings, {"refill": 2}, source="the test")
    assert "\n" not in str(error.value)
