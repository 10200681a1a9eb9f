"""A collapse and its rescue, in small: updates far too large, watched and acted on. The long form is
`python -m benchmarks.games.rescue`.
"""

import json
from pathlib import Path

import pytest

from tiny_runs import CUES, SFT, Signals, model_folder, run_tiny
from turnwise.runs import read_metrics
from turnwise.types import Message

TAUGHT = f"{Path(__file__).resolve()}:Taught"
TOO_LARGE = {
    "steps": 30,
    "env": {"name": TAUGHT},
    "rollout": {"groups_per_step": 8, "group_size": 4, "turn_tokens": 4, "max_turns": 3},
    "credit": {"estimator": "rloo"},
    "learner": {"minibatches": 4, "optimizer": {"lr": 2e-2}},
    "evaluate": {"tasks": 2},
    "checkpoint": {"every": 2, "keep": 1},
}
MONITOR = {"calibration_steps": 4, "window": 3, "patience": 2}


class Taught(Signals):
    """A game whose expert mostly knows, so that the cold start succeeds now and then and has something to lose."""

    def expert(self) -> Message:
        right = Message(role="assistant", content=CUES[self._cues[len(self._right)]])
        return right if self._guesses.random() < 0.8 else super().expert()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By mode and seed: a run from the same cold start."""
    root = tmp_path_factory.mktemp("rescue")
    cold = model_folder(run_tiny(root / "cold", steps=0, sft=SFT, env={"name": TAUGHT}), 0)
    made = {}
    for seed in (0, 2):
        for mode in ("monitor", "auto"):
            stability = {"mode": mode, "monitor": MONITOR}
            sections = {**TOO_LARGE, "model": {"name": str(cold)}, "stability": stability, "seed": seed}
            made[mode, seed] = run_tiny(root / f"{mode}-{seed}", **sections)
    return made


def trained(run):
    return [record for record in read_metrics(run.metrics) if record["stage"] == "train"]


def last_success(run):
    return sum(record["rollout/success"] for record in trained(run)[-5:]) / 5


@pytest.mark.parametrize("seed", [0, 2])
def test_auto_ends_clearly_above_its_control(runs, seed):
    assert last_success(runs["monitor", seed]) < 0.1
    assert last_success(runs["auto", seed]) > 0.4


@pytest.mark.parametrize("seed", [0, 2])
def test_it_goes_back_to_the_cold_start_and_makes_smaller_updates_until_they_are_small_enough(runs, seed):
    lines = (runs["auto", seed].path / "findings.jsonl").read_text().splitlines()
    actions = [line for line in map(json.loads, lines) if line["kind"] == "reduce_updates"]
    assert [action["lr_share"] for action in actions] == [0.5**power for power in range(1, len(actions) + 1)]
    steps = {record["step"]: record for record in trained(runs["auto", seed])}
    first = actions[0]["step"]
    assert actions[0]["rollback_to"] == 0
    assert steps[first + 1]["rollout/success"] > 0.2 > steps[first]["rollout/success"], "sampled by the cold start"
    for record in steps.values():
        updates = record["policy/steps_taken"] + record["policy/steps_idle"]
        rollbacks = sum(action["step"] < record["step"] for action in actions)
        assert (updates, record["optim/lr"]) == (1 if rollbacks else 4, pytest.approx(0.02 * 0.5**rollbacks))


def test_the_control_is_the_same_run_until_the_alarm(runs):
    alarm = next(record["step"] for record in trained(runs["auto", 0]) if record["stability/alarm"])
    same = [[record["rollout/success"] for record in trained(runs[mode, 0])[:alarm]] for mode in ("monitor", "auto")]
    assert same[0] == same[1]
