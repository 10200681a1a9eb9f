"""What a post-mortem finds in the files of a run: nothing in a sound one, and each thing that was changed in a copy."""

import json
import math
import shutil

import pytest

import turnwise.checks.stored
from tiny_runs import run_tiny
from turnwise.doctor.postmortem import examine_run
from turnwise.runs.store import read_rows, write_rows


@pytest.fixture(scope="module")
def sound(cold, tmp_path_factory):
    rollout = {"groups_per_step": 6, "group_size": 6, "turn_tokens": 4, "max_turns": 3}
    folder = tmp_path_factory.mktemp("runs") / "sound"
    return run_tiny(folder, model={"name": str(cold)}, steps=3, rollout=rollout, evaluate={"tasks": 4}).path


@pytest.fixture
def run(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "run")


def kinds(run) -> list[str]:
    return [diagnosis.kind for diagnosis in examine_run(run, probe=False).diagnoses]


def test_a_sound_run_has_no_finding_and_every_check_was_made(sound):
    examination = examine_run(sound, probe=False)
    assert [diagnosis.sentence for diagnosis in examination.diagnoses] == []
    assert [check.name for check in examination.checks if examination.status(check) != "ok"] == []
    assert examination.sound


def change_rows(run, change, stage="train"):
    for path in sorted((run / "trajectories").glob(f"{stage}-*.parquet")):
        rows = read_rows(path)
        for row in rows:
            change(row)
        write_rows(path, rows)


def change_turns(run, change):
    def every(row):
        for turn in row["turns"]:
            change(turn)

    change_rows(run, every)


def colder_logprobs(turn):
    turn["logprobs"] = [2 * one for one in turn["logprobs"]]


def nan_logprobs(turn):
    turn["logprobs"] = [math.nan for _ in turn["logprobs"]]


def old_version(turn):
    turn["version"], turn["versions"] = -5, None


def fewer_advantages(turn):
    turn["advantages"] = [0.0] * (len(turn["action_ids"]) - 1)


def cut(turn):
    turn["finish"] = "length"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (colder_logprobs, ["sampler_learner_gap"]),
        (nan_logprobs, ["nan_logprobs"]),
        (old_version, ["stale_version"]),
        (fewer_advantages, ["tokens_lost"]),
        (cut, ["stop_never_sampled"]),
    ],
)
def test_what_is_wrong_with_turns_is_named(run, change, expected):
    change_turns(run, change)
    assert kinds(run) == expected


def lose_reward(row):
    row["reward"] += 1.0


def fill_context(row):
    row["stop"] = "context_full"


def run_out_of_turns(row):
    row["stop"] = "max_turns"


def repeat_history(row):
    first, second = row["turns"]
    first["context_ids"] = [*range(30)]
    second["context_ids"] = [7, *range(30), 8]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lose_reward, ["rewards_lost"]),
        (fill_context, ["context_fills"]),
        (run_out_of_turns, ["episodes_cut"]),
        (repeat_history, ["history_rerendered"]),
    ],
)
def test_what_is_wrong_with_episodes_is_named(run, change, expected):
    change_rows(run, change)
    assert kinds(run) == expected


def test_groups_whose_members_are_copies_are_named(run):
    first = {}

    def copy_first(row):
        row["turns"] = first.setdefault((row["step"], row["group"]), row["turns"])

    change_rows(run, copy_first)
    assert "identical_members" in kinds(run)


def test_tasks_that_are_evaluated_and_trained_on_are_named(run):
    def same(row):
        task = json.loads(row["task"])
        row["task"] = json.dumps({**task, "data": {"cue": int(task["id"][-1])}})

    for stage in ("train", "evaluate"):
        change_rows(run, same, stage)
    assert kinds(run) == ["tasks_overlap"]


def change_metrics(run, **values):
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records = [{**one, **(values if one["stage"] == "train" else {})} for one in records]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"reward/bonus": 0.0}, ["channel_never_paid"]),
        ({"credit/zero_variance_groups": 1.0, "rollout/success": 0.1}, ["no_variance"]),
        ({"policy/steps_taken": 0, "policy/steps_idle": 1}, ["zero_gradient"]),
        ({"credit/zero_variance_groups": 1.0, "rollout/success": 1.0}, []),
    ],
)
def test_what_is_wrong_with_metrics_is_named(run, values, expected):
    change_metrics(run, **values)
    assert kinds(run) == expected


def test_alarms_of_the_run_and_its_slow_engine_are_told_again(run):
    findings = [
        {"step": 0, "kind": "slow_sampling", "severity": "alarm", "sentence": "sampling is slow: a bias"},
        {"step": 2, "kind": "echo_trap", "severity": "alarm", "sentence": "Echo Trap"},
        {"step": 2, "kind": "length_drift", "severity": "sign", "sentence": "longer"},
    ]
    (run / "findings.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in findings))
    assert kinds(run) == ["slow_sampling", "recorded_alarm"]


def test_a_disk_that_is_nearly_full_is_named(run, monkeypatch):
    class Usage:
        free = 10_000

    monkeypatch.setattr(turnwise.checks.stored.shutil, "disk_usage", lambda path: Usage)
    assert kinds(run) == ["disk_short"]


def test_a_damaged_file_is_a_note_and_the_others_are_read(run):
    (run / "trajectories/train-000001.parquet").write_bytes(b"not parquet")
    examination = examine_run(run, probe=False)
    assert any("train-000001.parquet" in note for note in examination.notes)
    assert examination.diagnoses == []


def test_a_run_that_has_not_trained_yet_is_no_error(run):
    shutil.rmtree(run / "trajectories")
    (run / "metrics.jsonl").unlink()
    examination = examine_run(run, probe=False)
    assert examination.sound
    assert examination.skipped["parity"] == "no trajectories of a training step are stored"


def test_python_that_is_not_the_users_is_not_run(run, monkeypatch):
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("Signals", "Others"))
    shutil.rmtree(run / "sources", ignore_errors=True)
    examination = examine_run(run)
    assert examination.probed is None
    assert any(note.startswith("the newest checkpoint was not probed: ") for note in examination.notes)
