"""What is done on an alarm, and when it is undone, along curves that are known."""

import pytest

from curves_by_hand import steady
from turnwise.credit.estimate import CreditSettings
from turnwise.losses.settings import LossSettings
from turnwise.stability import (
    Act,
    Controller,
    FilterSettings,
    MonitorSettings,
    Regime,
    RemedySettings,
    StabilitySettings,
)

OWN = Regime(
    filter=FilterSettings(),
    credit=CreditSettings(estimator="grpo", gamma=0.9),
    loss=LossSettings(kl_coef=0.1, clip_low=0.1),
)
QUICK = MonitorSettings(baseline_steps=3, window=1, patience=2)
TRAP = {"reward_std": 0.02, "token_entropy": 0.1}


def controller(mode="auto", own=OWN, **settings):
    return Controller(StabilitySettings(mode=mode, monitor=QUICK, **settings), own)


def go(control, curve, *, first=1, every=1, **options):
    """Walks along a curve, saving every so often and carrying acts out; returns the verdicts."""
    saved = {0: control.state_dict()}
    verdicts = []
    for step, vitals in enumerate(curve, first):
        verdict = control.observe(step, vitals, **options)
        verdicts.append(verdict)
        if verdict.act is not None:
            back = verdict.act.return_to
            control.carry_out(verdict.act, None if back is None else saved[back])
        if step % every == 0:
            control.choose_checkpoint(step)
            saved[step] = control.state_dict()
    return verdicts


def acts(verdicts):
    return [verdict.act for verdict in verdicts if verdict.act is not None]


def test_the_remedy_is_starpo_s():
    regime = RemedySettings().over(OWN)
    assert regime.filter == FilterSettings(rule="top_fraction", keep=0.25)
    assert regime.loss == LossSettings(kl_coef=0.0, clip_low=0.1, clip_high=0.28)
    assert regime.credit == CreditSettings(estimator="gae", gamma=0.9)


@pytest.mark.parametrize("part", ["filter", "clip_high", "kl_coef", "estimator"])
def test_each_part_of_the_remedy_can_be_left_out(part):
    whole, less = RemedySettings().over(OWN), RemedySettings(**{part: None}).over(OWN)
    changed = {
        "filter": less.filter == OWN.filter != whole.filter,
        "clip_high": less.loss.clip_high == OWN.loss.clip_high != whole.loss.clip_high,
        "kl_coef": less.loss.kl_coef == OWN.loss.kl_coef != whole.loss.kl_coef,
        "estimator": less.credit == OWN.credit != whole.credit,
    }
    assert changed == {name: name == part for name in changed}


def test_on_the_trap_it_goes_back_and_treats():
    control = controller()
    verdicts = go(control, [*steady(8), *steady(3, **TRAP)])
    # The signs begin at step 9 and have held for two steps at 10; the checkpoint of step 7 had one more good step.
    assert acts(verdicts) == [Act(kind="treat", step=10, return_to=7)]
    assert [finding.kind for finding in verdicts[9].findings][-1] == "echo_trap"
    assert control.treated
    assert control.regime == RemedySettings().over(OWN)
    assert control.warm_until == 12


def test_metrics_say_which_weights_a_step_trained():
    verdicts = go(controller(), [*steady(8), *steady(4, **TRAP)])
    assert [verdict.metrics["stability/trained_from"] for verdict in verdicts] == [*range(10), 7, 11]
    assert [verdict.metrics["stability/mode"] for verdict in verdicts] == [0.0] * 10 + [1.0] * 2
    assert [verdict.metrics["stability/alarm"] for verdict in verdicts] == [0.0] * 9 + [1.0, 0.0, 1.0]
    assert verdicts[-1].metrics["stability/rollbacks"] == 1.0


def test_it_steps_down_after_recovery():
    control = controller(recovery=5)
    verdicts = go(control, [*steady(8), *steady(2, **TRAP), *steady(10)])
    assert acts(verdicts) == [Act(kind="treat", step=10, return_to=7), Act(kind="release", step=15)]
    assert not control.treated
    assert control.regime == OWN


def test_what_is_not_well_does_not_count_as_recovery():
    control = controller(recovery=5)
    limping = [*steady(3), *steady(1, **TRAP), *steady(4)]
    go(control, [*steady(8), *steady(2, **TRAP), *limping])
    assert control.treated


def test_it_goes_back_no_more_often_than_allowed():
    control = controller(max_rollbacks=1)
    found = acts(go(control, [*steady(8), *steady(20, **TRAP)]))
    assert found == [Act(kind="treat", step=10, return_to=7)]
    assert control.treated
    none = controller(max_rollbacks=0)
    assert acts(go(none, [*steady(8), *steady(20, **TRAP)])) == [Act(kind="treat", step=10)], "the remedy alone"


def test_it_comes_back_to_nothing_that_was_unwell():
    """Checkpoints are made in the fall, too, and right before it."""
    control = controller()
    slow = [*steady(8), *steady(1, reward_std=0.02), *steady(3, **TRAP)]
    assert acts(go(control, slow))[0].return_to == 7
    assert control.wanted_checkpoints >= {0, 7}


def test_the_start_is_the_last_resort():
    assert acts(go(controller(), [*steady(8), *steady(4, **TRAP)], every=100))[0].return_to == 0


def test_the_monitor_goes_back_with_the_weights():
    """What it had learnt of the run after the checkpoint is no measure for the run before it."""
    control = controller()
    rich = [*steady(8), *steady(60, reward_std=4.0), *steady(2, reward_std=0.3, token_entropy=0.1)]
    assert acts(go(control, rich, every=8))[0] == Act(kind="treat", step=70, return_to=64)
    bound = controller()
    saved = {0: bound.state_dict()}
    for step, vitals in enumerate(rich, 1):
        verdict = bound.observe(step, vitals)
        if step == 8:
            saved[8] = bound.state_dict()
    assert verdict.act is not None
    bound.carry_out(Act(kind="treat", step=70, return_to=8), saved[8])
    assert acts(go(bound, steady(10), first=71)) == [], "0.4 was well then, though it is a tenth of 4"


def test_an_alarm_between_rollouts_waits():
    control = controller()
    verdicts = go(control, [*steady(8), *steady(3, **TRAP)], may_act=False)
    assert acts(verdicts) == []
    assert control.observe(12, steady(1, **TRAP)[0]).act == Act(kind="treat", step=12, return_to=7)


@pytest.mark.parametrize("mode", ["monitor", "always"])
def test_other_modes_speak_and_do_nothing(mode):
    control = controller(mode)
    verdicts = go(control, [*steady(8), *steady(6, **TRAP)])
    assert acts(verdicts) == []
    assert "echo_trap" in [finding.kind for verdict in verdicts for finding in verdict.findings]
    assert control.treated == (mode == "always")
    assert control.wanted_checkpoints == {0}


def test_always_warms_a_new_critic_up_and_leaves_an_old_one():
    assert controller("always").warm_until == 2
    assert controller("monitor").warm_until == 0
    critic = Regime(filter=OWN.filter, credit=CreditSettings(estimator="gae"), loss=OWN.loss)
    assert controller("always", own=critic).warm_until == 0


def test_acts_say_what_they_do():
    treat, release = Act(kind="treat", step=55, return_to=40), Act(kind="release", step=80)
    assert treat.sentence == "back to the checkpoint of step 40, StarPO-S is in force"
    assert release.to_json() == {
        "step": 80,
        "kind": "release",
        "return_to": None,
        "sentence": "healthy again: StarPO-S is laid down",
    }


@pytest.mark.parametrize("cut", [2, 7, 9, 10, 11, 14, 16])
def test_a_controller_goes_on_from_its_state(cut):
    """Cut before, in and after a return, and after the remedy was laid down."""
    curve = [*steady(8), *steady(3, **TRAP), *steady(10), *steady(2, **TRAP)]
    whole, first, second = (controller(recovery=4, max_rollbacks=1) for _ in range(3))
    expected = go(whole, curve)
    assert [act.kind for act in acts(expected)] == ["treat", "release", "treat"]
    saved = [first.state_dict()]
    for step in range(1, 24):
        control = first if step <= cut else second
        verdict = control.observe(step, curve[step - 1])
        assert verdict == expected[step - 1]
        if verdict.act is not None:
            back = verdict.act.return_to
            control.carry_out(verdict.act, None if back is None else saved[back])
        control.choose_checkpoint(step)
        saved.append(control.state_dict())
        if step == cut:
            second.load_state_dict(saved[-1])
