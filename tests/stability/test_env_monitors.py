"""The environments of a mixture are watched one by one: what one loses is found though the mean hides it."""

from dataclasses import replace

import pytest

from curves_by_hand import steady
from turnwise.credit.settings import CreditSettings
from turnwise.losses.settings import LossSettings
from turnwise.stability import (
    AlgorithmSettings,
    Controller,
    FilterSettings,
    MonitorSettings,
    StabilitySettings,
    measure_envs,
    select,
)
from turnwise.stability.signal import RewardSignal
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

OWN = AlgorithmSettings(filter=FilterSettings(), credit=CreditSettings(estimator="grpo"), loss=LossSettings())
QUICK = MonitorSettings(calibration_steps=3, window=1, patience=2)
SILENT = RewardSignal(
    varies_in_groups=False, varies=False, episodes=32, group_size=4, success=0.0, paid={"right": False}
)


def controller(mode="monitor"):
    return Controller(StabilitySettings(mode=mode, monitor=QUICK), OWN)


def level(**changes):
    return replace(next(iter(steady(1))), **changes)


def go(control, *, steps, first=1, **envs):
    """Findings along steps in which each environment has one level."""
    found = []
    for step in range(first, first + steps):
        whole = level(reward_std=9.0, success=0.123)
        found += control.decide(step, whole, by_env=envs).findings
    return found


def test_an_environment_that_is_forgotten_is_found():
    control = controller()
    assert go(control, steps=6, bandit=level(success=0.6), lake=level(success=0.6)) == []
    found = go(control, steps=8, first=7, bandit=level(success=0.9), lake=level(success=0.2))
    assert {(one.kind, one.env, one.severity) for one in found} >= {("success_drop", "lake", "sign")}
    assert not [one for one in found if one.env == "bandit"]
    assert next(one.sentence for one in found if one.kind == "success_drop").startswith("lake: success has fallen")
    assert next(one.to_json() for one in found if one.env)["env"] == "lake"


def test_an_environment_without_a_signal_is_named():
    control = controller()
    found = go(control, steps=3, bandit=level(signal=SILENT), lake=level())
    named = [one for one in found if one.kind == "no_signal"]
    assert [(one.env, one.step) for one in named] == [("bandit", 2)]
    assert "bandit: nothing is being learnt" in named[0].sentence


def test_levels_of_the_run_are_means_over_environments():
    control = controller()
    decision = control.decide(1, level(success=0.9), by_env={"a": level(success=0.2), "b": level(success=0.6)})
    assert decision.metrics["health/success"] == pytest.approx(0.4)
    assert decision.metrics["health/env=a/success"] == 0.2
    later = control.decide(2, level(success=0.9), by_env={"b": level(success=0.8)})
    assert later.metrics["health/success"] == pytest.approx(0.5), "a by its newest step"
    alone = controller().decide(1, level(success=0.9))
    assert alone.metrics["health/success"] == 0.9, "outside a mixture nothing changes"


def test_state_comes_back_with_the_checkpoint():
    first = controller("auto")
    go(first, steps=5, a=level(success=0.6), b=level(success=0.6))
    second = controller("auto")
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    falls = {"a": level(success=0.6), "b": level(success=0.1)}
    assert go(second, steps=6, first=6, **falls) == go(first, steps=6, first=6, **falls) != []
    older = {name: part for name, part in controller("auto").state_dict().items() if name != "envs"}
    controller("auto").load_state_dict(older)  # of before there were mixtures


def group(env, rewards):
    task = Task(id=f"{env}/0", env=env)
    turns = [
        (Turn(context_ids=(1,), action_ids=(2,), logprobs=(-0.5,), opens_row=True, rewards={"r": r}),) for r in rewards
    ]
    members = [Trajectory(task=task, turns=turn, stop=StopReason.DONE, metrics={"success": 1.0}) for turn in turns]
    return Group(task=task, trajectories=tuple(members))


LARGE, SMALL, FLAT = [0.0, 100.0], [0.0, 0.1], [1.0, 1.0]


def test_health_is_measured_by_environment():
    found = measure_envs([group("a", FLAT), group("b", SMALL), group("a", LARGE)])
    assert found["a"].reward_std == pytest.approx(25.0)
    assert (found["a"].zero_variance, found["b"].zero_variance) == (0.5, 0.0)
    assert measure_envs([group("", SMALL)]) == {}


def test_groups_are_ranked_within_their_environment():
    groups = [group("a", LARGE), group("b", SMALL), group("a", FLAT), group("b", FLAT)]
    chosen = select(groups, FilterSettings(rule="top_fraction", keep=0.5))
    assert chosen.kept == (0, 1), "by std alone it would be 0 of a, and then a tie"
    many = [group("a", LARGE), group("a", LARGE), group("b", SMALL), group("b", SMALL)]
    assert select(many, FilterSettings(rule="top_fraction", keep=0.5)).kept == (0, 2)
    metrics = chosen.metrics(0)
    assert metrics["filter/zero_variance"] == 2
    assert (metrics["filter/env=a/zero_variance"], metrics["filter/env=b/kept"]) == (1.0, 1.0)
    assert "filter/env=/kept" not in select([group("", SMALL)], FilterSettings()).metrics(0)


def test_a_limit_is_divided_among_environments():
    groups = [*(group("a", LARGE) for _ in range(6)), *(group("b", SMALL) for _ in range(3))]
    assert select(groups, FilterSettings(rule="nonzero", refill=1), most=3).kept == (0, 1, 6)
