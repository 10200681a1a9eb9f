"""One decision a step: what the controller does on an alarm, and when it undoes it, along curves that are known."""

from dataclasses import replace

import pytest

from curves_by_hand import WELL, steady
from turnwise.credit.estimate import CreditSettings
from turnwise.losses.settings import LossSettings
from turnwise.stability import (
    Action,
    AlgorithmSettings,
    Controller,
    FilterSettings,
    MonitorSettings,
    StabilitySettings,
    StarPOSSettings,
)
from turnwise.stability.signal import RewardSignal

OWN = AlgorithmSettings(
    filter=FilterSettings(),
    credit=CreditSettings(estimator="grpo", gamma=0.9),
    loss=LossSettings(kl_coef=0.1, clip_low=0.1),
)
STARPO_S = StarPOSSettings().apply_to(OWN)
QUICK = MonitorSettings(calibration_steps=3, window=1, patience=2)
TRAP = {"reward_std": 0.02, "token_entropy": 0.1}


def controller(mode="auto", own=OWN, **settings):
    return Controller(StabilitySettings(mode=mode, monitor=QUICK, **settings), own)


def go(control, curve, *, first=1, every=1, **options):
    """Walks along a curve with a checkpoint every so often; returns the decisions."""
    return [
        control.decide(step, health, checkpoint=step % every == 0, **options)
        for step, health in enumerate(curve, first)
    ]


def actions(decisions):
    return [decision.action for decision in decisions if decision.action is not None]


def test_starpo_s_overrides_the_runs_own_settings():
    assert STARPO_S.filter == FilterSettings(rule="top_fraction", keep=0.25)
    assert STARPO_S.loss == LossSettings(kl_coef=0.0, clip_low=0.1, clip_high=0.28)
    assert STARPO_S.credit == CreditSettings(estimator="gae", gamma=0.9)


@pytest.mark.parametrize("part", ["filter", "clip_high", "kl_coef", "estimator"])
def test_each_part_of_starpo_s_can_be_left_out(part):
    whole, less = STARPO_S, StarPOSSettings(**{part: None}).apply_to(OWN)
    changed = {
        "filter": less.filter == OWN.filter != whole.filter,
        "clip_high": less.loss.clip_high == OWN.loss.clip_high != whole.loss.clip_high,
        "kl_coef": less.loss.kl_coef == OWN.loss.kl_coef != whole.loss.kl_coef,
        "estimator": less.credit == OWN.credit != whole.credit,
    }
    assert changed == {name: name == part for name in changed}


def test_a_ratio_that_many_tokens_share_keeps_its_own_bounds():
    own = replace(OWN, loss=LossSettings(form="gspo", ratio="trajectory", clip_low=3e-4, clip_high=4e-4))
    enabled = StarPOSSettings().apply_to(own).loss
    assert (enabled.clip_low, enabled.clip_high, enabled.kl_coef) == (3e-4, 4e-4, 0.0)
    assert STARPO_S.loss.clip_high == 0.28


def test_on_the_trap_it_rolls_back_and_enables_starpo_s():
    control = controller()
    assert control.current.settings == OWN
    decisions = go(control, [*steady(8), *steady(3, **TRAP)])
    # The signs begin at step 9 and have held for two steps at 10; the checkpoint of step 7 had one more good step.
    assert actions(decisions) == [Action(kind="enable_starpo_s", step=10, rollback_to=7)]
    alarm = decisions[9]
    assert [finding.kind for finding in alarm.findings][-1] == "echo_trap"
    assert alarm.events == (*alarm.findings, alarm.action)
    assert [decision.settings for decision in decisions] == [OWN] * 9 + [STARPO_S] * 2
    assert [decision.critic_warmup_until for decision in decisions] == [0] * 9 + [12] * 2
    assert control.current.settings == STARPO_S


def test_metrics_say_which_weights_a_step_trained():
    decisions = go(controller(), [*steady(8), *steady(4, **TRAP)])
    assert [decision.metrics["stability/trained_from"] for decision in decisions] == [*range(10), 7, 11]
    assert [decision.metrics["stability/mode"] for decision in decisions] == [0.0] * 10 + [1.0] * 2
    assert [decision.metrics["stability/alarm"] for decision in decisions] == [0.0] * 9 + [1.0, 0.0, 0.0], (
        "calibrated anew"
    )
    assert decisions[-1].metrics["stability/rollbacks"] == 1.0
    assert [decision.metrics["health/reward_std"] for decision in decisions] == [0.4] * 8 + [0.02] * 4


def test_starpo_s_is_disabled_after_recovery():
    control = controller(recovery=5)
    decisions = go(control, [*steady(8), *steady(2, **TRAP), *steady(10)])
    assert actions(decisions) == [
        Action(kind="enable_starpo_s", step=10, rollback_to=7),
        Action(kind="disable_starpo_s", step=15),
    ]
    assert decisions[-1].settings == OWN


def test_an_unhealthy_step_does_not_count_as_recovery():
    control = controller(recovery=5)
    limping = [*steady(3), *steady(1, **TRAP), *steady(4)]
    decisions = go(control, [*steady(8), *steady(2, **TRAP), *limping])
    assert decisions[-1].settings == STARPO_S


def test_it_rolls_back_no_more_often_than_allowed():
    decisions = go(controller(max_rollbacks=1), [*steady(8), *steady(20, **TRAP)])
    assert actions(decisions) == [Action(kind="enable_starpo_s", step=10, rollback_to=7)]
    assert decisions[-1].settings == STARPO_S
    none = go(controller(max_rollbacks=0), [*steady(8), *steady(20, **TRAP)])
    assert actions(none) == [Action(kind="enable_starpo_s", step=10)], "StarPO-S alone"


def test_it_rolls_back_to_no_unhealthy_checkpoint():
    """Checkpoints are made in the fall, too, and right before it."""
    slow = [*steady(8), *steady(1, reward_std=0.02), *steady(3, **TRAP)]
    decisions = go(controller(), slow)
    assert actions(decisions)[0].rollback_to == 7
    assert all(decision.keep_checkpoints >= {0, 7} for decision in decisions[6:])


def test_checkpoints_to_keep_are_the_start_the_healthy_one_and_its_successor():
    control = controller()
    assert control.current.keep_checkpoints == {0}
    decisions = go(control, [*steady(8), *steady(4, **TRAP)], every=2)
    # That of step 2 falls into calibration, that of step 4 is confirmed at step 5 and that of step 6 at 7; that of step
    # 8 is dropped by the signs of step 9. That of step 10 has the weights of step 6 again, and falls into calibration.
    kept = [decision.keep_checkpoints for decision in decisions]
    assert kept[:6] == [{0}, {0}, {0}, {0, 4}, {0, 4}, {0, 4, 6}]
    assert kept[6:] == [{0, 6}, {0, 6, 8}, {0, 6}, {0, 6}, {0, 6}, {0, 6}]
    assert decisions[9].action == Action(kind="enable_starpo_s", step=10, rollback_to=6)


def test_the_start_is_the_last_resort():
    assert actions(go(controller(), [*steady(8), *steady(4, **TRAP)], every=100))[0].rollback_to == 0


def test_the_monitor_goes_back_with_the_weights():
    """What it had learnt of the run after the checkpoint is no measure for the run before it."""
    rich = [*steady(8), *steady(60, reward_std=4.0), *steady(2, reward_std=0.3, token_entropy=0.1)]
    assert actions(go(controller(), rich, every=8))[0] == Action(kind="enable_starpo_s", step=70, rollback_to=64)
    control = controller()
    early = [control.decide(step, health, checkpoint=step == 8) for step, health in enumerate(rich, 1)]
    assert actions(early) == [Action(kind="enable_starpo_s", step=70, rollback_to=8)]
    later = go(control, steady(10), first=71)
    assert [event for decision in later for event in decision.events] == [], "0.4 was well then, a tenth of 4 or not"


COLLAPSE = {"success": 0.02, "reward": 0.02, "reward_std": 0.02}


def test_on_a_collapse_of_success_it_rolls_back_and_makes_updates_smaller():
    """StarPO-S chooses what to learn from; updates that destroy a policy are too large for it, too."""
    control = controller()
    decisions = go(control, [*steady(8), *steady(4, **COLLAPSE)])
    (action,) = actions(decisions)
    assert action == Action(kind="reduce_updates", step=action.step, rollback_to=7, lr_share=0.5)
    assert [finding.kind for finding in decisions[action.step - 1].findings][-1] == "success_collapse"
    assert control.current.settings == replace(OWN, lr_share=0.5)
    assert decisions[action.step - 2].settings == OWN


def test_every_further_collapse_halves_the_learning_rate_again():
    control = controller(max_rollbacks=3)
    relapse = [*steady(8), *steady(4, **COLLAPSE)]
    decisions = go(control, relapse * 5)
    assert [(action.kind, action.lr_share) for action in actions(decisions)][:3] == [
        ("reduce_updates", 0.5),
        ("reduce_updates", 0.25),
        ("reduce_updates", 0.125),
    ]
    assert control.current.settings.lr_share == 0.125, "for the rest of the run"
    assert [action.rollback_to for action in actions(decisions)][3:] == [None], "StarPO-S alone, once"


def test_an_alarm_while_starpo_s_is_enabled_makes_updates_smaller():
    control = controller(lr_backoff=0.1)
    again = [*steady(8), *steady(6, **TRAP), *steady(8), *steady(3, **TRAP)]
    first, second = actions(go(control, again))
    assert (first.kind, first.lr_share) == ("enable_starpo_s", None)
    assert (second.kind, second.lr_share) == ("reduce_updates", pytest.approx(0.1))
    assert control.current.settings == replace(STARPO_S, lr_share=second.lr_share), "both"


def test_smaller_updates_outlast_starpo_s():
    """What was learnt from misleading groups is over after recovery; updates that were too large would be so again."""
    control = controller(recovery=5)
    curve = [*steady(8), *steady(4, **COLLAPSE), *steady(8), *steady(3, **TRAP), *steady(8)]
    kinds = [action.kind for action in actions(go(control, curve))]
    assert kinds == ["reduce_updates", "enable_starpo_s", "disable_starpo_s"]
    assert control.current.settings == replace(OWN, lr_share=0.5)


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_a_collapse_within_calibration_goes_back_to_a_checkpoint_from_before_it(every):
    """Success over 32 groups a step, as an LLM lost it on Sokoban: .67 to 0 in eight steps."""
    control = Controller(StabilitySettings(mode="auto"), OWN)
    shares = [0.667, 0.609, 0.643, 0.583, 0.607, 0.391, 0.307, 0.0, 0.0, 0.0]
    decisions = go(control, [of_share(share) for share in shares], every=every)
    assert actions(decisions) == [Action(kind="reduce_updates", step=10, rollback_to=0, lr_share=0.5)]
    assert all(0 in decision.keep_checkpoints for decision in decisions), "it was never pruned"
    again = go(control, [of_share(share) for share in [0.66, 0.6, 0.0, 0.0, 0.0]], first=11, every=every)
    assert actions(again) == [Action(kind="reduce_updates", step=15, rollback_to=0, lr_share=0.25)]


def test_no_checkpoint_from_within_calibration_counts_as_healthy():
    """A run that has begun to fall looks healthy until there is a level to fall from."""
    control = Controller(StabilitySettings(mode="auto"), OWN)
    shares = [0.6, 0.55, 0.5, 0.45, 0.42, 0.4, 0.38, 0.35, 0.33, 0.3, *[0.0] * 4]
    (action, *_) = actions(go(control, [of_share(share) for share in shares]))
    assert action.rollback_to == 0


def test_a_checkpoint_whose_success_is_low_is_not_trusted_though_rewards_still_differ():
    """After a rollback to the start nothing is calibrated, and the first step is all that a level is known by."""
    control = Controller(StabilitySettings(mode="auto", monitor=QUICK), OWN)
    low = replace(of_share(0.03), reward_std=0.3)
    decisions = go(control, [of_share(0.5), *[low] * 9])
    assert all(decision.keep_checkpoints == {0} for decision in decisions)
    rare = Controller(StabilitySettings(mode="auto", monitor=QUICK), OWN)
    one, none = of_share(0.03), of_share(0.0)
    none = replace(none, reward_std=0.4, signal=replace(none.signal, varies_in_groups=True))
    kept = go(rare, [one, *[one, none] * 6])[-1].keep_checkpoints
    assert max(kept) > 0, "one success of 32 groups may be missing by chance"
    fine = Controller(StabilitySettings(mode="auto", monitor=QUICK), OWN)
    assert max(go(fine, [of_share(0.5), *[of_share(0.4)] * 9])[-1].keep_checkpoints) > 0


def of_share(success):
    """A step of 384 episodes, of which so many succeed."""
    signal = RewardSignal(
        varies_in_groups=success > 0, varies=success > 0, episodes=384, group_size=12, success=success, paid={}
    )
    return replace(WELL, success=success, reward=success, reward_std=0.4 if success else 0.0, signal=signal)


def test_an_alarm_between_rollouts_waits():
    control = controller()
    decisions = go(control, [*steady(8), *steady(3, **TRAP)], may_act=False)
    assert actions(decisions) == []
    waited = control.decide(12, steady(1, **TRAP)[0])
    assert waited.action == Action(kind="enable_starpo_s", step=12, rollback_to=7)


@pytest.mark.parametrize("mode", ["monitor", "always"])
def test_other_modes_report_and_do_nothing(mode):
    control = controller(mode)
    decisions = go(control, [*steady(8), *steady(6, **TRAP)])
    assert actions(decisions) == []
    assert "echo_trap" in [finding.kind for decision in decisions for finding in decision.findings]
    assert {decision.settings == STARPO_S for decision in decisions} == {mode == "always"}
    assert {decision.keep_checkpoints for decision in decisions} == {frozenset({0})}


def test_off_reports_nothing():
    decisions = go(controller("off"), [*steady(8), *steady(6, **TRAP)])
    assert [(decision.events, decision.metrics) for decision in decisions] == [((), {})] * 14


def test_a_step_without_episodes_has_a_decision():
    control = controller()
    go(control, steady(4))
    decision = control.decide(5, None)
    assert (decision.events, decision.settings) == ((), OWN)
    assert all(name.startswith("stability/") for name in decision.metrics)
    assert decision.metrics["stability/trained_from"] == 4.0


def test_always_warms_a_new_critic_up_and_leaves_an_old_one():
    assert controller("always").current.critic_warmup_until == 2
    assert controller("monitor").current.critic_warmup_until == 0
    critic = AlgorithmSettings(filter=OWN.filter, credit=CreditSettings(estimator="gae"), loss=OWN.loss)
    assert controller("always", own=critic).current.critic_warmup_until == 0


def test_starpo_s_that_does_not_fit_the_run_matters_only_where_it_may_be_enabled():
    unmasked = AlgorithmSettings(
        filter=OWN.filter, credit=CreditSettings(estimator="grpo", advantage_mask=False), loss=OWN.loss
    )
    starpo_s = StarPOSSettings(estimator="turn-gae")
    assert controller("monitor", own=unmasked, starpo_s=starpo_s).current.settings == unmasked


def test_actions_say_what_they_do():
    enable = Action(kind="enable_starpo_s", step=55, rollback_to=40)
    assert enable.sentence == "rolled back to step 40; StarPO-S enabled"
    assert Action(kind="enable_starpo_s", step=55).sentence == "StarPO-S enabled"
    smaller = Action(kind="reduce_updates", step=10, rollback_to=0, lr_share=0.25)
    assert smaller.sentence == "rolled back to step 0; one update a step, at 0.25 of the learning rate"
    assert smaller.to_json()["lr_share"] == 0.25
    assert Action(kind="disable_starpo_s", step=80).to_json() == {
        "step": 80,
        "kind": "disable_starpo_s",
        "rollback_to": None,
        "sentence": "healthy again; StarPO-S disabled",
    }


@pytest.mark.parametrize("cut", [8, 11, 12, 13, 16])
def test_smaller_updates_are_remembered_by_a_checkpoint(cut):
    curve = [*steady(8), *steady(4, **COLLAPSE), *steady(8)]
    whole, first, second = (controller() for _ in range(3))
    expected = go(whole, curve)
    assert [action.kind for action in actions(expected)] == ["reduce_updates"]
    go(first, curve[:cut])
    second.load_state_dict(first.state_dict())
    assert second.current.settings == expected[cut - 1].settings
    assert go(second, curve[cut:], first=cut + 1) == expected[cut:]
    assert second.state_dict() == whole.state_dict()


def test_a_state_from_before_updates_could_be_smaller_can_be_loaded():
    before, later = controller(), controller()
    go(before, steady(6))
    state = before.state_dict()
    del state["lr_share"]
    later.load_state_dict(state)
    assert later.current.settings == OWN


@pytest.mark.parametrize("cut", [2, 7, 9, 10, 11, 14, 16])
def test_a_controller_goes_on_from_its_state(cut):
    """Cut before, in and after a rollback, and after StarPO-S was disabled."""
    curve = [*steady(8), *steady(3, **TRAP), *steady(10), *steady(2, **TRAP)]
    whole, first, second = (controller(recovery=4, max_rollbacks=1) for _ in range(3))
    expected = go(whole, curve)
    kinds = [action.kind for action in actions(expected)]
    assert kinds == ["enable_starpo_s", "disable_starpo_s", "enable_starpo_s"]
    assert go(first, curve[:cut]) == expected[:cut]
    second.load_state_dict(first.state_dict())
    assert second.current.settings == expected[cut - 1].settings
    assert go(second, curve[cut:], first=cut + 1) == expected[cut:]
    assert second.state_dict() == whole.state_dict()
