"""The checks that run in every training step: what they report of a planted fault, and that a sound run has nothing."""

import copy
import dataclasses
import os

import pytest

import turnwise.training.trainer
from doctor_faults import (
    DeafToLoads,
    NaNLogprobs,
    OneSeed,
    RawLogprobs,
    Ward,
    frozen_optimizer,
    learner_temperature,
    lost_rewards,
    shifted_mask,
    zero_gradient,
)
from tiny_runs import Silent, run_tiny, tiny_config
from turnwise.runs import read_metrics
from turnwise.runs.findings import read_findings
from turnwise.training import step_checks
from turnwise.training.build import assemble
from turnwise.training.callbacks import Callback
from turnwise.training.trainer import run_training
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

LONG = pytest.mark.skipif(os.environ.get("TURNWISE_FAULTS") != "long", reason="part of make test-faults")


@pytest.fixture
def sections(cold):
    rollout = {"groups_per_step": 8, "group_size": 8, "turn_tokens": 4, "max_turns": 3, "temperature": 0.7}
    return {"model": {"name": str(cold)}, "steps": 2, "rollout": rollout, "evaluate": {"tasks": 1}}


def wrap_engine(patch: pytest.MonkeyPatch, wrapper) -> None:
    def wrapped(*args, **settings):
        parts = assemble(*args, **settings)
        engine = wrapper(parts.engine, parts.loaded.model) if wrapper is RawLogprobs else wrapper(parts.engine)
        return dataclasses.replace(parts, engine=engine)

    patch.setattr(turnwise.training.trainer, "assemble", wrapped)


def kinds(run) -> list[tuple[int, str]]:
    return [(one["step"], one["kind"]) for one in read_findings(run.path / "findings.jsonl")]


def test_a_sound_run_has_no_findings(sections, tmp_path):
    assert kinds(run_tiny(tmp_path / "run", **sections)) == []


def test_samples_of_older_weights_are_sound_where_they_are_asked_for(sections, tmp_path):
    sections["rollout"]["staleness"] = 1
    run = run_tiny(tmp_path / "run", **{**sections, "steps": 4})
    assert max(record["staleness/max"] for record in read_metrics(run.metrics) if record["stage"] == "train") == 1
    assert kinds(run) == []


@pytest.mark.parametrize(
    ("wrapper", "step", "kind"),
    [
        (DeafToLoads, 2, "stale_version"),
        pytest.param(RawLogprobs, 1, "sampler_learner_gap", marks=LONG),
        (NaNLogprobs, 1, "nan_logprobs"),
    ],
)
def test_a_fault_of_the_engine_is_reported_within_two_steps(sections, tmp_path, monkeypatch, wrapper, step, kind):
    wrap_engine(monkeypatch, wrapper)
    assert (step, kind) in kinds(run_tiny(tmp_path / "run", **sections))


@pytest.mark.parametrize(
    ("plant", "step", "kind"),
    [
        (learner_temperature, 1, "sampler_learner_gap"),
        pytest.param(shifted_mask, 1, "mask_shifted", marks=LONG),
        (lost_rewards, 1, "rewards_lost"),
        (frozen_optimizer, 2, "weights_unmoved"),
        pytest.param(zero_gradient, 1, "zero_gradient", marks=LONG),
    ],
)
def test_a_fault_of_the_learner_is_reported_within_two_steps(sections, tmp_path, monkeypatch, plant, step, kind):
    plant(Ward(None, None, monkeypatch))
    assert (step, kind) in kinds(run_tiny(tmp_path / "run", **sections))


def test_a_finding_is_reported_once_and_to_callbacks(sections, tmp_path, monkeypatch):
    heard = []

    class Listening(Callback):
        def on_finding(self, step, finding):
            heard.append((step, finding.kind, finding.sentence))

    wrap_engine(monkeypatch, OneSeed)
    run = run_training(tiny_config(**sections), tmp_path / "run", display=Silent(), callbacks=[Listening()])
    assert [(step, kind) for step, kind, _ in heard if kind == "identical_members"] == [(1, "identical_members")]
    assert kinds(run).count((1, "identical_members")) == 1
    assert (2, "identical_members") not in kinds(run)


def test_a_resumed_run_does_not_repeat_a_finding(sections, tmp_path, monkeypatch):
    wrap_engine(monkeypatch, OneSeed)
    longer = copy.deepcopy(sections) | {"checkpoint": {"every": 1}}
    run_tiny(tmp_path / "run", **longer)
    run = run_tiny(tmp_path / "run", resume=True, **(longer | {"steps": 3}))
    assert [kind for _, kind in kinds(run)].count("identical_members") == 1


def test_a_large_step_is_checked_in_part_and_another_part_each_time(monkeypatch):
    turn = Turn(context_ids=(1,) * 90, action_ids=(2,) * 10, logprobs=(-1.0,) * 10, opens_row=True)
    task = Task(id="a")
    one = Trajectory(task=task, turns=(turn,), stop=StopReason.DONE)
    groups = [Group(task=task, trajectories=(one,) * 4)] * 10
    monkeypatch.setattr(step_checks, "TOKENS", 1000)
    assert step_checks._choose(groups, start=1) == [1, 2, 3]
    assert step_checks._choose(groups, start=9) == [9, 0, 1]
    monkeypatch.setattr(step_checks, "TOKENS", 1)
    assert step_checks._choose(groups, start=0) == [0, 1]
    assert step_checks._choose([], start=3) == []
