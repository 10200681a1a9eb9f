"""The monitor sees the trap early, and sees nothing in runs that are well."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from curves_by_hand import WELL, alarms, echo_trap, healthy, kinds, noisy, slide, steady, watch
from turnwise.stability import Monitor, MonitorSettings
from turnwise.stability import monitor as monitor_module
from turnwise.stability.lost_success import LostSuccess
from turnwise.stability.signal import RewardSignal
from turnwise.stability.tracked import TrackedMetric


@pytest.mark.parametrize("seed", range(20))
def test_healthy_runs_raise_no_alarm(seed):
    assert alarms(healthy(seed)) == []


def test_clipping_on_policy_is_a_sign_that_costs_no_checkpoint():
    """It is compared with 0 and not with the run's past, so it is found from the start; a few percent are none."""
    findings, monitor = watch(steady(6, on_policy_clip=0.58))
    (finding,) = findings
    assert (finding.kind, finding.step, finding.severity) == ("on_policy_clipping", 3, "sign")
    assert finding.sentence.endswith("(on_policy_clip 0.58, was 0)")
    assert monitor.healthy
    assert kinds(steady(20, on_policy_clip=0.02)) == []
    assert kinds(steady(20, on_policy_clip=None)) == []


def test_a_context_too_short_for_the_task_is_found_with_the_settings_to_change():
    """From the first steps on, and without costing a checkpoint: no policy is to blame for its limits."""
    findings, monitor = watch(steady(6, context_full=0.4))
    (finding,) = findings
    assert (finding.kind, finding.step, finding.severity) == ("context_full", 3, "sign")
    assert "raise rollout.context_tokens" in finding.sentence
    assert finding.sentence.endswith("(context_full 0.4, was 0)")
    assert monitor.healthy
    assert monitor.signs == []
    assert kinds(steady(20, context_full=0.25)) == []


def test_a_state_from_before_a_metric_was_tracked_can_be_loaded():
    _, monitor = watch(steady(6))
    state = monitor.state_dict()
    del state["tracked"]["on_policy_clip"]
    later = Monitor(MonitorSettings())
    later.load_state_dict(state)
    assert later.observe(7, WELL) == []


def sampled(successes, episodes=384, *, std=None):
    """A step for each share of successes; rewards differ within groups where some succeed, or by `std` in every step
    without success."""
    return [
        replace(
            WELL,
            success=share,
            reward=share,
            reward_std=WELL.reward_std if share > 0 else std or 0.0,
            zero_variance=(1 - share) ** 12 if share > 0 or std is None else 0.1,
            signal=RewardSignal(
                varies_in_groups=share > 0 if std is None else std > 0,
                varies=share > 0,
                episodes=episodes,
                group_size=12,
                success=share,
                paid={},
            ),
        )
        for share in successes
    ]


SOKOBAN = [0.667, 0.609, 0.643, 0.583, 0.607, 0.391, 0.307, 0.0, 0.0, 0.0, 0.0]
"""Of an LLM whose updates were too large: its eight steps of calibration were its last."""


def test_success_that_is_gone_is_an_alarm_before_the_monitor_is_calibrated():
    findings, monitor = watch(sampled(SOKOBAN))
    (alarm,) = [finding for finding in findings if finding.severity == "alarm"]
    assert (alarm.kind, alarm.step) == ("success_collapse", 10)
    assert alarm.evidence == {"success": (pytest.approx(0.307 / 4), pytest.approx(sum(SOKOBAN[:5]) / 5))}
    assert alarm.sentence == "what the policy could do is lost (success 0.0767, was 0.622)"
    assert monitor.alarmed
    assert monitor.collapsed
    assert not monitor.healthy


def test_the_success_of_the_first_step_which_the_cold_start_sampled_can_be_lost():
    curve = sampled([0.667, *[0.0] * 4])
    assert [watch(curve[:steps])[1].healthy for steps in (1, 2, 3)] == [True, False, False], "suspected at once"
    assert alarms(curve) == [4], "3 steps of 32 groups"


def test_a_run_without_success_by_chance_or_with_rewards_that_still_differ_raises_no_alarm():
    assert alarms(sampled([0.0] * 20)) == [], "it never had any"
    few = sampled([*[0.05] * 20, *[0.0] * 20], episodes=192)
    lost = LostSuccess()
    found = [lost.add(health.signal, health.reward_std) for health in few]
    # 16 successes in 320 groups prove 16 - 4: 10.2 are missed in 17 steps of 16 groups.
    assert next(step for step, evidence in enumerate(found, 1) if evidence) == 37
    assert found[36] == {"success": (0.0, pytest.approx(0.05))}
    assert alarms(sampled([0.6, 0.6, 0.6, 0.0, 0.0, 0.0, 0.0], std=0.25)) == [], "by more than half of what they did"
    assert alarms(sampled([0.6, 0.6, 0.6, 0.0, 0.0, 0.0, 0.0], std=0.1)) == [6], "a penalty alone"
    assert alarms(sampled([0.6, 0.6, 0.6, *[0.0] * 12], std=0.25), calibration_steps=20) == [14], "eight steps of grace"
    assert alarms(sampled([0.6, *[0.0] * 12], episodes=12, std=0.25), calibration_steps=20) == [], "one group's luck"
    assert alarms(sampled([0.6, 0.6, 0.0, 0.0, 0.6, 0.0, 0.0, 0.6])) == [], "it came back"


def test_where_success_is_rare_the_signal_is_lost_first():
    """Of groups of 12 at a success of .05, .46 differ: 7.4 of 16 a step, and none in 32 is no chance any more."""
    few = sampled([0.05, 0.05, 0.05, *[0.0] * 6], episodes=192)
    (alarm,) = [finding for finding in watch(few)[0] if finding.severity == "alarm"]
    assert (alarm.kind, alarm.step) == ("success_collapse", 7)
    assert alarm.evidence == {"reward": (0.0, pytest.approx(0.05)), "zero_variance": (1.0, pytest.approx(0.95**12))}
    assert [watch(few[:steps])[1].healthy for steps in (3, 4)] == [True, False]


def test_groups_that_agree_at_a_higher_reward_have_lost_nothing():
    """Half of the task is learnt for sure: there is nothing left to learn from, but nothing was destroyed."""
    agree = sampled([0.0] * 8)
    assert alarms([*sampled([0.05] * 3), *(replace(health, reward=0.5) for health in agree)]) == []
    assert alarms([*sampled([0.05] * 3), *agree]) == [6]


def test_a_run_whose_groups_never_differed_has_no_signal_to_lose():
    assert alarms([replace(health, reward=-step) for step, health in enumerate(sampled([0.0] * 10))]) == []


def test_a_lost_signal_is_remembered_by_a_checkpoint():
    few = sampled([0.05, 0.05, 0.05, *[0.0] * 6], episodes=192)
    _, before = watch(few[:6])
    later = Monitor(MonitorSettings())
    later.load_state_dict(before.state_dict())
    assert [one.kind for one in later.observe(7, few[6]) if one.severity == "alarm"] == ["success_collapse"]


def test_success_need_not_be_gone_altogether_to_be_lost():
    """Of 384 episodes some succeed by luck; a third of the level is a fall, and not one that excludes chance soon."""
    lucky = [replace(health, reward_std=0.02) for health in sampled([0.03] * 6)]
    (alarm,) = [one for one in watch([*sampled([0.6] * 4), *lucky])[0] if one.severity == "alarm"]
    assert (alarm.kind, alarm.step) == ("success_collapse", 7)
    assert alarm.evidence == {"success": (pytest.approx(0.03), pytest.approx(0.6))}
    third = [replace(health, reward_std=0.02) for health in sampled([0.2] * 6)]
    # 76.8 successes of 128 groups prove 68: 17 - 6.4 + 6.4 ln(6.4/17) is 4.4 a step of 32 groups, enough after three.
    assert alarms([*sampled([0.6] * 4), *third], calibration_steps=20) == [9]
    half = [replace(health, reward_std=0.02) for health in sampled([0.31] * 6)]
    assert alarms([*sampled([0.6] * 4), *half], calibration_steps=20) == []


FALLING = [0.711, 0.648, 0.599, 0.443, 0.357, 0.284, 0.279, 0.273, 0.31, 0.268, 0.25, 0.263]
"""Of an LLM that lost two thirds of its success by degrees, and whose rewards went on differing."""


def test_a_fall_by_degrees_is_no_level():
    curve = sampled([*FALLING, *[0.27] * 8])
    (alarm,) = [one for one in watch(curve)[0] if one.severity == "alarm"]
    assert (alarm.kind, alarm.step) == ("success_collapse", 16), "low from step 6 on, and eight steps of grace"
    assert alarm.evidence["success"][1] == pytest.approx(sum(FALLING[:2]) / 2)
    assert [watch(curve[:steps])[1].healthy for steps in (6, 7, 8, 16)] == [True, False, False, False]


def test_the_luck_of_a_first_step_is_no_level():
    curve = sampled([0.6, *[0.2] * 40], episodes=96)
    lost = LostSuccess()
    assert not any(lost.add(health.signal, health.reward_std) for health in curve)


def test_the_level_of_an_older_checkpoint_is_the_mean_that_it_knew():
    lost, later = LostSuccess(), LostSuccess()
    for health in sampled([0.6] * 4):
        lost.add(health.signal, health.reward_std)
    older = {name: value for name, value in lost.state_dict().items() if not name.startswith("best")}
    later.load_state_dict(older)
    assert later.state_dict() == lost.state_dict()


def test_success_that_is_gone_is_remembered_by_a_checkpoint_and_forgiven_after_a_restart():
    curve = sampled(SOKOBAN)
    _, before = watch(curve[:9])
    later = Monitor(MonitorSettings())
    later.load_state_dict(before.state_dict())
    assert {one.kind for one in later.observe(10, curve[9])} == {"success_collapse", "no_signal"}
    assert later.collapsed
    later.restart()
    assert all(one.severity == "sign" for one in later.observe(11, curve[10]))
    assert not later.alarmed
    again = [one for step in range(12, 16) for one in later.observe(step, curve[10]) if one.severity == "alarm"]
    assert [one.step for one in again] == [13], "the level that was lost stays"


@pytest.mark.parametrize("seed", range(10))
def test_the_trap_is_seen_before_success_falls(seed):
    curve = echo_trap(seed)
    first = alarms(curve)[0]
    assert 40 < first <= 90, "after the deviation falls, before the success does"


def test_a_run_that_is_solved_is_well():
    """Everybody in a group succeeds: nothing differs any more, and nothing is wrong."""
    curve = [*steady(15), *slide(30, success=1.0, reward_std=0.0, token_entropy=0.1, action_entropy=0.1)]
    curve += [replace(curve[-1])] * 50
    findings, monitor = watch(curve)
    assert [finding.kind for finding in findings if finding.severity == "alarm"] == []
    assert monitor.healthy


def test_the_same_fall_without_success_is_the_trap():
    curve = [*steady(15), *slide(30, reward_std=0.0, token_entropy=0.1, action_entropy=0.1)]
    curve += [replace(curve[-1])] * 20
    findings, monitor = watch(curve)
    seen = [finding.kind for finding in findings]
    assert seen == ["variance_decline", "variance_collapse", "entropy_collapse", "echo_trap"]
    assert monitor.alarmed
    assert not monitor.healthy


def narrowed(steps, success):
    return steady(steps, success=success, reward=success, reward_std=0.05, token_entropy=0.2)


def test_a_policy_that_narrows_as_it_learns_shows_signs_and_no_alarm_until_success_falls():
    """As LLMs do on questions: three quarters succeed, and most groups agree."""
    rising = slide(40, success=(0.3, 0.75), reward=(0.3, 0.75), reward_std=0.05, token_entropy=0.2)
    curve = [*steady(15), *rising, *narrowed(40, 0.75)]
    findings, monitor = watch(curve)
    assert {one.kind for one in findings} == {"variance_decline", "entropy_collapse", "variance_collapse"}
    assert monitor.healthy, "a checkpoint of it is one to roll back to"
    (alarm,) = alarms([*curve, *narrowed(10, 0.5)])
    assert 95 < alarm <= 103


def test_a_policy_that_narrows_and_learns_nothing_is_trapped_however_slowly():
    curve = [*steady(15), *slide(40, reward_std=0.05, token_entropy=0.2), *narrowed(20, 0.3)]
    findings, monitor = watch(curve)
    (alarm,) = [one for one in findings if one.severity == "alarm"]
    assert alarm.kind == "echo_trap"
    assert set(alarm.evidence) == {"reward_std", "token_entropy"}
    assert not monitor.collapsed
    assert not monitor.healthy


def test_reward_that_rises_before_the_first_success_is_learning():
    """Of a shaped reward, success comes last."""
    shaped = slide(40, success=(0.0, 0.0), reward=(0.1, 0.4), reward_std=0.05, token_entropy=0.2)
    curve = [*steady(15, success=0.0, reward=0.1), *shaped, *steady(20, success=0.0, reward=0.4, reward_std=0.05)]
    assert "variance_collapse" in kinds(curve)
    assert alarms(curve) == []


@pytest.mark.parametrize(
    "harm", [{"repeated_turns": 0.6}, {"invalid_actions": 0.7}, {"early_stops": 0.7}], ids="+".join
)
def test_a_sign_of_harm_makes_a_trap_of_a_run_that_had_learnt(harm):
    rising = slide(40, success=(0.3, 0.6), reward=(0.3, 0.6), reward_std=0.05)
    curve = [*steady(15), *rising, *steady(30, success=0.6, reward=0.6, reward_std=0.05)]
    assert alarms(curve) == []
    assert alarms([*curve, *steady(10, success=0.6, reward=0.6, reward_std=0.05, **harm)])


@pytest.mark.parametrize(
    "fall",
    [
        {"reward_std": 0.02},
        {"token_entropy": 0.1, "action_entropy": 0.1},
        {"gradient": 20.0},
        {"repeated_turns": 0.9, "repeated_ngrams": 0.9, "token_entropy": 0.1},
        {"invalid_actions": 0.9, "gradient": 20.0, "early_stops": 0.9},
    ],
    ids=lambda fall: "+".join(fall),
)
def test_one_sign_however_clear_is_no_alarm(fall):
    """Nor are several, as long as groups still differ."""
    curve = [*steady(15), *steady(40, **fall)]
    assert alarms(curve) == []
    assert kinds(curve)


@pytest.mark.parametrize(
    ("fall", "kind"),
    [
        ({"token_entropy": 0.3}, "entropy_collapse"),
        ({"action_entropy": 0.3}, "entropy_collapse"),
        ({"repeated_turns": 0.6}, "repetition"),
        ({"repeated_ngrams": 0.7}, "repetition"),
        ({"gradient": 9.0}, "gradient_spike"),
        ({"invalid_actions": 0.7}, "invalid_actions"),
        ({"early_stops": 0.7}, "early_stopping"),
        ({"success": 0.1, "reward": 0.1}, "success_drop"),
        ({"information": 0.2}, "template_collapse"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
def test_any_other_sign_makes_a_trap_of_collapsed_variance(fall, kind):
    before = steady(15, information=1.5)
    findings, _ = watch([*before, *steady(15, **{"information": 1.5, "reward_std": 0.1} | fall)])
    (alarm,) = [finding for finding in findings if finding.severity == "alarm"]
    assert {finding.kind for finding in findings} == {"variance_collapse", kind, alarm.kind}
    assert alarm.kind == ("success_collapse" if kind == "success_drop" else "echo_trap"), "success fell to a third"
    assert set(alarm.evidence) >= {"reward_std"} and len(alarm.evidence) == 2  # noqa: PT018  # one of each
    assert alarm.evidence["reward_std"] == (0.1, pytest.approx(0.4))


def test_length_is_worth_a_word_and_makes_no_trap():
    assert set(kinds([*steady(15), *steady(15, reward_std=0.1, response_length=90.0)])) == {
        "variance_collapse",
        "length_drift",
    }


def test_a_new_length_becomes_a_habit():
    _, monitor = watch([*steady(15), *steady(150, response_length=90.0)])
    assert "length_drift" not in monitor.signs


def test_template_collapse_is_less_information_at_the_same_entropy():
    before = steady(15, information=1.5)
    assert kinds([*before, *steady(15, information=0.1)]) == ["template_collapse"]
    falls_too = steady(15, information=0.1, token_entropy=0.1)
    assert kinds([*before, *falls_too]) == ["entropy_collapse"]


def test_information_may_be_measured_seldom():
    sparse = [replace(WELL, information=1.5 if step % 5 == 0 else None) for step in range(30)]
    late = [replace(WELL, information=0.1 if step % 5 == 0 else None) for step in range(40)]
    assert kinds([*sparse, *late]) == ["template_collapse"]


@pytest.mark.parametrize("length", [1, 2])
def test_a_few_bad_steps_raise_nothing(length):
    """A whole step may be wrong in everything at once."""
    bad = replace(WELL, reward_std=0.0, token_entropy=0.0, gradient=50.0, repeated_turns=1.0, success=0.0, reward=0.0)
    curve = [*steady(20), *[bad] * length, *steady(20)]
    assert [kind for kind in kinds(curve) if kind != "gradient_spike"] == []


def test_noise_alone_raises_no_alarm_and_hardly_a_sign():
    """Noise of a quarter: a sign in some eighty steps, and in 2,000 never a conjunction that lasts."""
    found = list(itertools.chain.from_iterable(kinds(noisy(steady(200), seed, 0.25)) for seed in range(10)))
    assert "echo_trap" not in found
    assert len(found) <= 30


def test_variance_and_success_that_fall_together_are_seen_before_either_has_collapsed(monkeypatch):
    both = steady(10, reward_std=0.3, success=0.22, reward=0.22)
    # A step counts for 3 deviations at most, less the allowance of .75: the fourth makes 9 each and 18 together.
    assert alarms([*steady(15), *both]) == [21], "the third step at which they come to more than 16"
    assert alarms([*steady(15), *steady(40, reward_std=0.3)]) == []
    assert alarms([*steady(15), *steady(40, success=0.22, reward=0.22)]) == []
    monkeypatch.setattr(monitor_module, "JOINT_DECLINE", 20.0)
    assert alarms([*steady(15), *both]) == [22]


def test_an_alarm_is_said_once_and_again_after_it_has_passed():
    trap = steady(12, reward_std=0.05, token_entropy=0.2)
    assert len(alarms([*steady(15), *trap])) == 1
    assert len(alarms([*steady(15), *trap, *steady(10), *trap])) == 2


def test_patience_is_how_long_a_conjunction_must_hold():
    curve = [*steady(10), *steady(10, reward_std=0.05, token_entropy=0.2)]
    # With a window of one the signs are there at step 11.
    assert [alarms(curve, window=1, patience=patience) for patience in (1, 3, 10)] == [[11], [13], [20]]


def test_thresholds_are_relative_to_the_runs_own_past():
    """The same fall in a run whose rewards are a thousandfold."""
    tall = [
        replace(v, reward_std=1000 * v.reward_std, gradient=1000 * v.gradient, response_length=10 * v.response_length)
        for v in echo_trap(3)
    ]
    assert kinds(tall) == kinds(echo_trap(3))


def test_an_environment_without_a_word_for_success_is_judged_by_its_reward():
    curve = [*steady(15, success=None), *steady(15, success=None, reward=5.0, reward_std=0.05, token_entropy=0.2)]
    curve += steady(40, success=None, reward=5.0, reward_std=0.05, token_entropy=0.2)
    assert alarms(curve) == [], "the reward has risen"
    assert len(alarms([*curve, *steady(12, success=None, reward=3.0, reward_std=0.05, token_entropy=0.2)])) == 1


def test_a_finding_says_what_in_a_plain_sentence():
    findings, _ = watch([*steady(10), *steady(5, token_entropy=0.2)], window=1)
    words = "the policy's entropy has collapsed: it hardly varies its output"
    assert findings[0].sentence == f"{words} (token_entropy 0.2, was 1)"
    assert findings[0].to_json() == {
        "step": 13,
        "kind": "entropy_collapse",
        "severity": "sign",
        "sentence": findings[0].sentence,
        "evidence": {"token_entropy": {"now": 0.2, "healthy": 1.0}},
    }


@pytest.mark.parametrize("cut", [3, 12, 47, 60, 85])
def test_a_monitor_goes_on_from_its_state(cut):
    curve = echo_trap(1)
    whole, _ = watch(curve)
    _, first = watch(curve[:cut])
    second = Monitor(MonitorSettings())
    second.load_state_dict(first.state_dict())
    later = [f for step, health in enumerate(curve[cut:], cut + 1) for f in second.observe(step, health)]
    assert later == [finding for finding in whole if finding.step > cut]


def test_after_a_restart_variance_and_entropy_are_calibrated_anew_and_success_is_not():
    """What follows has another objective, and after a rollback is another policy: only success must not get lost."""
    trap = steady(12, reward_std=0.05, token_entropy=0.2)
    _, monitor = watch([*steady(15), *trap])
    assert monitor.alarmed
    monitor.restart()
    assert not monitor.alarmed
    assert (monitor.healthy, monitor.calibrated) == (True, False)
    assert [finding for step, health in enumerate(trap, 28) for finding in monitor.observe(step, health)] == []
    assert monitor.calibrated
    worse = steady(9, reward_std=0.01, token_entropy=0.05, success=0.1, reward=0.1)
    again = [finding for step, health in enumerate(worse, 40) for finding in monitor.observe(step, health)]
    assert again[0].evidence == {"reward_std": (0.01, pytest.approx(0.05))}
    (alarm,) = [finding for finding in again if finding.severity == "alarm"]
    assert alarm.evidence["progress"] == (0.1, pytest.approx(0.3))


def test_a_rise_is_one_since_the_last_calibration():
    _, monitor = watch(
        [*steady(15), *slide(20, success=(0.3, 0.6), reward=(0.3, 0.6)), *steady(10, success=0.6, reward=0.6)]
    )
    assert monitor._has_risen
    monitor.restart()
    later = [*steady(10, success=0.6, reward=0.6), *narrowed(10, 0.6)]
    found = [finding for step, health in enumerate(later, 46) for finding in monitor.observe(step, health)]
    assert "echo_trap" in [finding.kind for finding in found]


def test_gradients_of_another_objective_have_a_past_of_their_own():
    _, monitor = watch(steady(15))
    monitor.restart()
    later = [f for step in range(16, 40) for f in monitor.observe(step, replace(WELL, gradient=50.0))]
    assert later == []
    spikes = [f.kind for step in range(40, 50) for f in monitor.observe(step, replace(WELL, gradient=500.0))]
    assert spikes == ["gradient_spike"]


def tracked_metric(*values, **settings):
    """A metric whose first values are these."""
    defaults = {"calibration_steps": len(values), "window": 3, "follow_better": 0.5, "follow_worse": 0.1}
    metric = TrackedMetric("higher", **defaults | settings)
    for value in values:
        metric.add(value)
    return metric


def test_a_healthy_level_by_hand():
    metric = tracked_metric(2.0, 3.0, 100.0, 2.0, 3.0, 2.0)
    # The median is 2.5. Neighbours are 1, 97, 98, 1 and 1 apart, 1 in the median; 1.4826 / √2 of that is the deviation.
    assert metric.healthy == 2.5
    assert metric.noise == pytest.approx(1.0484, abs=1e-4)
    assert metric.now == 2.0
    for value in (6.5, 6.5):
        metric.add(value)
    metric.follow()
    assert (metric.now, metric.healthy) == (6.5, 4.5), "half of the way up"
    for value in (2.5, 2.5, 2.5):
        metric.add(value)
    metric.follow()
    assert metric.healthy == pytest.approx(4.3), "a tenth of the way down"


def test_noise_is_that_of_steps_and_not_of_a_trend():
    rising = tracked_metric(1.0, 3.0, 2.0, 4.0, 3.0, 5.0, 4.0, 6.0)
    assert rising.noise == pytest.approx(1.4826 / math.sqrt(2) * 2), "neighbours are 2, 1, 2, 1, 2, 1 and 2 apart"
    one_wild_step = tracked_metric(*[10.0, 11.0] * 4)
    before = one_wild_step.noise
    one_wild_step.add(1000.0)
    one_wild_step.follow()
    assert before < one_wild_step.noise <= before * (1 + 2 / 9), "it counts for three deviations, as one of nine steps"


def test_a_rise_by_hand():
    metric = tracked_metric(*[10.0, 11.0] * 4)
    one = metric.noise
    sums = []
    for deviations in (2.0, 9.0, 0.75, -1.0, -9.0, 1.0):
        metric.add(10.5 + deviations * one)
        sums.append(metric.rise)
    # Less .75 each: 1.25, 2.25 more since nine count for three, the same, 1.75 less, none, and a quarter.
    assert sums == pytest.approx([1.25, 3.5, 3.5, 1.75, 0.0, 0.25])
    for _ in range(100):
        metric.add(20.0)
        metric.follow()
    assert metric.healthy > 19.0
    assert metric.rise == 15.0, "above the first level, not above the one that followed"
    never = tracked_metric(0.0, 0.0, 0.0)
    for value in (0.0, 0.1, 0.2, 0.0):
        never.add(value)
    assert never.rise == pytest.approx(2.25 + 2.25 - 0.75)


def test_a_decline_by_hand():
    metric = tracked_metric(*[10.0, 11.0] * 4)
    one = metric.noise
    assert (metric.healthy, metric.decline) == (10.5, 0.0)
    sums = []
    for deviations in (2.0, 2.0, 0.75, -1.0, 9.0, -9.0, 1.0):
        metric.add(10.5 - deviations * one)
        sums.append(metric.decline)
    # Less .75 each: 1.25, 2.5, the same, 1.75 less, 2.25 more since nine count for three, none, and a quarter.
    assert sums == pytest.approx([1.25, 2.5, 2.5, 0.75, 3.0, 0.0, 0.25])
    for _ in range(100):
        metric.add(0.0)
    assert metric.decline == 15.0, "so that a run that has come back is believed within twenty steps"
    metric.recalibrate(keep_level=True)
    assert (metric.decline, metric.healthy) == (0.0, 10.5)
    for value in (3.0, 5.0, 4.0):
        metric.add(value)
    assert metric.decline == pytest.approx(3 * 2.25), "of the level that was kept, while the rise is calibrated"


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_lift_the_healthy_level(seed):
    episode_seed = random.Random(seed)
    metric = TrackedMetric("higher", calibration_steps=8, window=5)
    for _ in range(300):
        metric.add(episode_seed.gauss(10, 1))
        metric.follow()
    assert metric.healthy == pytest.approx(10, abs=0.5)
    assert metric.noise == pytest.approx(1, rel=0.35)


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_decline_of_both_is_seen_before_half_of_success_is_lost(seed):
    """From the first step on, and no step tells it from noise: success .0042 a step, amid deviations of .025."""
    curve = noisy(slide(60, success=(0.45, 0.2), reward_std=(0.24, 0.16)), seed, 0.1)
    assert alarms(curve)[0] < 54, "there success is .225"


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_decline_of_variance_alone_is_no_alarm(seed):
    curve = noisy(slide(60, success=(0.45, 0.45), reward_std=(0.24, 0.16)), seed, 0.1)
    assert "variance_decline" in kinds(curve)
    assert alarms(curve) == []
