"""How much the probe samples: what a device can play in minutes."""

import pytest

from tiny_runs import tiny_config
from turnwise.doctor import probe
from turnwise.doctor.preflight import examine_recipe


@pytest.mark.parametrize(("large", "episodes"), [(False, 24), (True, 4)])
def test_a_large_model_on_a_cpu_plays_few_episodes(large, episodes, tmp_path, monkeypatch):
    """SmolLM2 took more than a quarter of an hour for those of Sokoban."""
    monkeypatch.setattr(probe, "LARGE", 0 if large else 50_000_000)
    said = []
    config = tiny_config(rollout={"groups_per_step": 8, "group_size": 8}, model={"device": "cpu"})
    examine_recipe(config, subject="tiny", folder=tmp_path, say=said.append)
    assert f"sampling and learning from {episodes} episodes, step 1 of 3" in said
