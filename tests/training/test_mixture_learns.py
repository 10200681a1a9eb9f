"""One model learns two games in one run, whose answers no demonstration shows, and loses neither."""

import pytest

from tiny_runs import SFT, SMALLEST, Silent, records
from tiny_signals import DUSK, SIGNALS
from turnwise.config import parse_config, resolve_recipe
from turnwise.settings import Layer, Recipe
from turnwise.training.trainer import run_training

pytestmark = pytest.mark.slow
STEPS, LATE = 12, 4
RUN = {
    "env": {"mixture": {"day": {"name": SIGNALS}, "dusk": {"name": DUSK, "group_size": 10}}, "sampling": "curriculum"},
    "model": {"small": SMALLEST},
    "seed": 4,
    "sft": SFT,
    "rollout": {"groups_per_step": 12, "group_size": 8, "turn_tokens": 4, "max_turns": 3},
    "learner": {"optimizer": {"lr": 3e-3}, "epochs": 4, "minibatches": 2},
    "evaluate": {"tasks": 8, "samples_per_task": 8, "temperature": 1.0},
    "steps": STEPS,
}


def test_both_are_learnt_beyond_chance(tmp_path):
    config = parse_config(resolve_recipe(Recipe([Layer("the test", RUN)])), "the test")
    run = run_training(config, tmp_path / "run", display=Silent())
    before, after = records(run, "evaluate")
    train = records(run, "train")
    for name in ("day", "dusk"):
        curve = [record[f"rollout/env={name}/success"] for record in train]
        assert before[f"evaluate/env={name}/success"] < 0.25, "guesses win both turns once in sixteen"
        assert sum(curve[-LATE:]) / LATE >= 0.3, (name, curve)
        assert after[f"evaluate/env={name}/success"] >= 0.3, (name, curve)
        assert after[f"evaluate/env={name}/success_low"] > before[f"evaluate/env={name}/success_high"] - 0.1
