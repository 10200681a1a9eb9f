"""What the tests of this benchmark start from."""

import pytest
import yaml

RECIPE = {
    "env": {"name": "bandit", "args": {"expert_noise": 0.5, "think": False, "train_tasks": 40}},
    "model": {
        "name": "small",
        "small": {"layers": 1, "width": 32, "heads": 2, "positions": 256, "vocabulary": 400, "induction": False},
        "device": "cpu",
    },
    "sft": {"demonstrations": 32, "batch": 8, "optimizer": {"lr": 1e-2}},
    "steps": 2,
    "rollout": {"groups_per_step": 8, "group_size": 2, "max_turns": 1, "turn_tokens": 12, "context_tokens": 256},
    "loss": {"entropy_coef": 0.1},
    "learner": {"optimizer": {"lr": 1e-3}},
    "evaluate": {"hold_out": 6},
}
"""So small that a job takes a second; the entropy alone moves its weights where rewards of a group do not differ."""


@pytest.fixture
def recipe(tmp_path, monkeypatch, jobs_in_this_process):
    """The name of a recipe in a folder that has nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-bandit.yaml").write_text(yaml.safe_dump(RECIPE))
    return "tiny-bandit"
