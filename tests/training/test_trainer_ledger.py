"""A whole run is accounted for: seconds sum to the wall-clock, tokens to what was sampled, and both are shown."""

import json
import time

import pytest

from tiny_runs import Silent, records, run_tiny, tiny_config
from turnwise.ledger import ACCOUNTS, TOKENS, Ledger
from turnwise.runs import read_metrics, read_trajectories
from turnwise.runs.ledger.totals import read_totals
from turnwise.training.trainer import run_training

SECTIONS = {
    "steps": 3,
    "sft": {"demonstrations": 256, "batch": 16},
    "evaluate": {"tasks": 8, "every": 2, "untrained": True},
    "checkpoint": {"every": 2},
    "rollout": {"groups_per_step": 8, "group_size": 4, "turn_tokens": 4, "max_turns": 3},
}


@pytest.fixture(scope="module")
def accounted(tmp_path_factory):
    """A run with every stage there is, and how long a clock outside of it says it took."""
    config, folder = tiny_config(**SECTIONS), tmp_path_factory.mktemp("accounted") / "run"
    began = time.perf_counter()
    run = run_training(config, folder, display=Silent())
    return run, time.perf_counter() - began


def test_the_accounts_of_a_run_sum_to_its_wall_clock_within_a_percent(accounted):
    run, wall = accounted
    totals = read_totals(read_metrics(run.metrics))
    spent = sum(totals.accounts().values())
    assert spent == pytest.approx(totals.wall, rel=1e-6)
    assert spent == pytest.approx(wall, rel=0.01)


def test_the_accounts_of_every_record_sum_to_its_own_stretch(accounted):
    for record in read_metrics(accounted[0].metrics):
        seconds = {name: value for name, value in record.items() if name.startswith("ledger/") and "_seconds" in name}
        wall = seconds.pop("ledger/wall_seconds")
        assert sum(seconds.values()) == pytest.approx(wall, rel=1e-6)
        assert min(seconds.values()) >= 0


def test_time_is_charged_where_it_was_spent(accounted):
    """Each of these did something in this run; what nobody claims is little."""
    totals = read_totals(read_metrics(accounted[0].metrics))
    accounts = totals.accounts()
    worked = {"prefill", "decode", "environment", "render", "load", "update", "diagnose", "evaluate"}
    assert {*worked, "sft", "store", "checkpoint", "prepare"} <= accounts.keys() <= ACCOUNTS.keys()
    assert accounts["other"] < 0.05 * totals.wall
    assert accounts.get("tool_wait", 0.0) < 0.01 * totals.wall, "no tool of this game waits"
    assert totals.seconds["cold start"].keys() <= {"sft", "store", "checkpoint", "other", "render"}
    assert totals.seconds["training"]["update"] > totals.seconds["evaluation"].get("update", 0.0) == 0.0


def test_every_token_that_was_sampled_has_one_fate(accounted):
    run, _ = accounted
    for record in records(run, "train"):
        named = [name for name in record if name.startswith("ledger/")]
        counts = {name.removeprefix("ledger/").removesuffix("_tokens"): record[name] for name in named}
        assert counts.keys() <= TOKENS.keys()
        fates = [counts[name] for name in ("trained", "zero_advantage", "filtered", "failed")]
        members = [
            member
            for group in read_trajectories(run.trajectory_file("train", record["step"]))
            for member in group.trajectories
        ]
        assert sum(fates) == counts["sampled"] == sum(member.action_tokens for member in members)
        assert counts["truncated"] == sum(member.action_tokens for member in members if member.stop.truncated)
        asked = sum(
            sum(len(before.context_ids) + len(before.action_ids) for before in member.turns[:place])
            + len(turn.context_ids)
            for member in members
            for place, turn in enumerate(member.turns)
        )
        assert counts["prompt_computed"] + counts["prompt_reused"] == asked, "no prompt token is lost"


def test_a_run_ends_with_a_report(accounted):
    run, _ = accounted
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "finished after 3 steps" in page
    assert "Where the time went" in page
    assert [record["stage"] for record in read_metrics(run.metrics)][-1] == "end"


def test_a_ledger_begun_earlier_has_the_time_before(tmp_path):
    ledger = Ledger()
    with ledger.spend("prepare"):
        time.sleep(0.3)
    run = run_training(tiny_config(steps=0), tmp_path / "run", display=Silent(), ledger=ledger)
    first = json.loads(run.metrics.read_text().splitlines()[0])
    assert first["ledger/prepare_seconds"] > 0.3


def test_a_run_made_longer_ends_once(tmp_path):
    run_tiny(tmp_path / "run", steps=1)
    run = run_tiny(tmp_path / "run", steps=2, resume=True)
    ends = [record["step"] for record in records(run) if record["stage"] == "end"]
    assert ends == [2]
    assert records(run)[-1]["stage"] == "end"


def test_a_run_that_ended_without_saying_so_says_so_when_it_is_resumed(tmp_path):
    """It was killed between its last checkpoint and its last record."""
    run = run_tiny(tmp_path / "run", steps=1)
    whole = records(run)
    lines = run.metrics.read_text().splitlines(keepends=True)
    run.metrics.write_text("".join(lines[:-1]))
    (run.path / "report.html").unlink()
    run_tiny(tmp_path / "run", steps=1, resume=True)
    assert records(run) == whole
    assert (run.path / "report.html").is_file()
