"""The benchmark of training while sampling: what it runs, and how it counts."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from benchmarks.scale import asynchronous
from benchmarks.scale.slow import SlowEncyclopedia
from turnwise.agents import ExpertAgent
from turnwise.config import load_config
from turnwise.rollout import run_episode


def write_run(folder: Path, *, every: float, after: float) -> None:
    folder.mkdir(parents=True)
    ledger = {"ledger/wall_seconds": every, "ledger/tool_wait_seconds": every / 4}
    records = [
        {"stage": "evaluate", "step": 0, "time": 0.0, "evaluate/success": 0.25},
        *({"stage": "train", "step": step, "time": 50 + every * step, **ledger} for step in range(1, 6)),
        {"stage": "evaluate", "step": 5, "time": 99.0, "evaluate/success": after},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "report.html").touch()


def test_steps_are_counted_between_the_first_and_the_last(tmp_path):
    write_run(tmp_path / "run", every=0.5, after=0.75)
    assert asynchronous.measure(tmp_path / "run") == {
        "steps_per_second": 2.0,
        "before": 0.25,
        "after": 0.75,
        "tasks": 256.0,
        "tool_wait": 0.25,
        "staleness": 0.0,
        "dropped": 0.0,
    }


def test_both_ways_are_trained_alike_and_compared(tmp_path, monkeypatch, capsys):
    asked = []

    def train(folder, recipe, overrides):
        config = load_config(recipe, overrides)
        asked.append((folder.name, config))
        if folder.name == "cold":
            (folder / "checkpoints/step-000000/model").mkdir(parents=True)
        else:
            write_run(folder, every=1 / (1 + config.rollout.staleness), after=0.5)

    monkeypatch.setattr(asynchronous, "train", train)
    assert asynchronous.main(["--run", str(tmp_path), "--steps", "5"]) == 0
    assert [name for name, _ in asked] == ["cold", "staleness-0-seed-0", "staleness-1-seed-0"]
    apart, together = (config.model_dump() for _, config in asked[1:])
    assert apart["rollout"].pop("staleness") == 0
    assert together["rollout"].pop("staleness") == 1
    assert together["loss"].pop("tis_cap") == 2
    assert apart["loss"].pop("tis_cap") is None
    assert apart == together
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| 0 | 1.00 | 1.00 x | 25% | 0.250 | 0.500 ± 0.031 |")
    assert lines[3].startswith("| 1 | 2.00 | 2.00 x |")


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_every_search_takes_its_time_and_an_answer_none(seconds):
    env = SlowEncyclopedia(seconds=seconds, lazy=0.0)
    task = env.tasks("train")[0]
    began = time.monotonic()
    episode = asyncio.run(run_episode(ExpertAgent(), env.spawn_for(task), task, episode_seed=0))
    assert episode.success
    assert len(episode.turns) == 3
    if seconds:
        assert 2 * seconds <= time.monotonic() - began
        assert [turn.env_seconds >= seconds for turn in episode.turns] == [True, True, False]
