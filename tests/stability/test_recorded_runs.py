"""The monitor over runs that were recorded: LLMs on a GPU and the built-in model, learning, trapped and collapsing."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.real.replay import Recording, main, make_table
from turnwise.stability import Controller, MonitorSettings, StabilitySettings
from turnwise.stability.lost_success import GRACE
from turnwise.stability.monitor import Monitor

FOLDER = Path(__file__).parent / "recorded"
RECORDED = {file.stem: Recording.read(file) for file in sorted(FOLDER.glob("*.json"))}
DOCS = Path(__file__).parents[2] / "docs" / "stability.md"


def named(*outcomes):
    return [name for name, recording in RECORDED.items() if recording.outcome in outcomes]


def first_alarm(curve):
    monitor = Monitor(MonitorSettings())
    for step, health in enumerate(curve, 1):
        for finding in monitor.observe(step, health):
            if finding.severity == "alarm":
                return step, finding.kind
    return None


def test_there_are_recordings_of_every_outcome():
    assert len(named("healthy")) >= 16
    assert len(named("collapsed")) >= 4
    assert len(named("trapped")) >= 3


@pytest.mark.parametrize("name", named("healthy", "declining"))
def test_no_run_that_keeps_its_success_raises_an_alarm(name):
    assert first_alarm(RECORDED[name].curve) is None


DIFFERING = ("sokoban-qwen-500m-fast", "sokoban-qwen-500m-rescued")
"""Collapses in which rewards went on differing, so that the run might have recovered by itself."""


@pytest.mark.parametrize("name", named("collapsed"))
def test_a_collapse_is_found_within_four_steps_of_the_loss_or_within_those_of_grace(name):
    step, kind = first_alarm(RECORDED[name].curve)
    assert kind == "success_collapse"
    most = GRACE if name in DIFFERING else 4
    assert RECORDED[name].half_lost <= step <= RECORDED[name].half_lost + most


@pytest.mark.parametrize("name", named("trapped"))
def test_a_trap_is_found_before_half_of_success_is_lost(name):
    step, kind = first_alarm(RECORDED[name].curve)
    assert kind == "echo_trap"
    assert step < RECORDED[name].half_lost


def fall(curve, at, shares=(0.64, 0.5, *[0.0] * 8)):
    """A run up to a step, and then the fall of Sokoban's success, as shares of what this run had."""
    last = curve[at - 1]
    success, std = (sum(getattr(one, name) for one in curve[at - 3 : at]) / 3 for name in ("success", "reward_std"))
    return [
        *curve[:at],
        *(
            replace(
                last,
                success=share * success,
                reward=share * success,
                reward_std=share * std,
                signal=replace(last.signal, success=share * success, varies_in_groups=share > 0),
            )
            for share in shares
        ),
    ]


@pytest.mark.parametrize("at", [3, 8, 15, None])
@pytest.mark.parametrize("name", [name for name in named("healthy") if "shaped" not in name])
def test_a_fall_grafted_onto_any_healthy_run_is_found_within_eight_steps(name, at):
    """Before calibration, at its end, soon after it, and at the end of the run."""
    curve = RECORDED[name].curve
    at = min(at or len(curve), len(curve))
    step, _ = first_alarm(fall(curve, at))
    assert at < step <= at + 8


def test_the_controller_leaves_a_healthy_run_alone_and_trusts_its_checkpoints():
    """The run on which `auto` once rolled back at steps 41 and 48, though nothing was wrong."""
    control = Controller(StabilitySettings(mode="auto"), own())
    curve = RECORDED["multihop-qwen-500m-again"].curve
    decisions = [control.decide(step, health, checkpoint=step % 6 == 0) for step, health in enumerate(curve, 1)]
    assert [decision.action for decision in decisions if decision.action is not None] == []
    assert max(control.current.keep_checkpoints) >= 72, "though its groups agree from step 40 on"


def test_the_collapse_of_sokoban_goes_back_to_its_cold_start_with_smaller_updates():
    control = Controller(StabilitySettings(mode="auto"), own())
    curve = RECORDED["sokoban-qwen-500m-collapse"].curve
    decisions = [control.decide(step, health, checkpoint=True) for step, health in enumerate(curve[:10], 1)]
    (action,) = [decision.action for decision in decisions if decision.action is not None]
    assert (action.kind, action.step, action.rollback_to, action.lr_share) == ("reduce_updates", 10, 0, 0.5)


def test_a_collapse_whose_rewards_go_on_differing_goes_back_to_its_cold_start():
    """As `auto` did, in the run that was recorded."""
    control = Controller(StabilitySettings(mode="auto"), own())
    curve = RECORDED["sokoban-qwen-500m-rescued"].curve
    decisions = [control.decide(step, health, checkpoint=step % 4 == 0) for step, health in enumerate(curve, 1)]
    (action,) = [decision.action for decision in decisions if decision.action is not None]
    assert (action.kind, action.step, action.rollback_to, action.lr_share) == ("reduce_updates", 14, 0, 0.5)


def own():
    from turnwise.config import Config

    return Config.model_validate({"env": {"name": "bandit"}, "model": {"name": "small"}}).algorithm_settings


def test_the_table_of_the_documentation_is_the_one_that_the_recordings_make(capsys):
    assert main([str(FOLDER)]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == make_table(list(RECORDED.values()))
    assert printed in DOCS.read_text(encoding="utf-8"), f"python -m benchmarks.real.replay {FOLDER.name}"


def test_a_run_is_recorded_as_its_metrics_say(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    line = '{{"step": {0}, "stage": "{1}", "health/success": 0.12345, "health/reward": 1, "health/reward_std": 0.5, \
"health/zero_variance": 0.25, "filter/kept": 3, "filter/dropped": 1, "rollout/episodes": 32}}\n'
    (run / "metrics.jsonl").write_text(
        "".join([line.format(0, "evaluate"), *(line.format(n, "train") for n in (1, 2))])
    )
    assert main(["--record", str(run), "--about", "mine", "--to", str(tmp_path / "mine.json")]) == 0
    recording = Recording.read(tmp_path / "mine.json")
    assert (recording.about, recording.outcome, recording.episodes, recording.group_size) == ("mine", "healthy", 32, 8)
    assert recording.health == {
        "success": [0.123, 0.123],
        "reward": [1.0, 1.0],
        "reward_std": [0.5, 0.5],
        "zero_variance": [0.25, 0.25],
    }
    assert recording.half_lost is None
    with pytest.raises(SystemExit):
        main([])
