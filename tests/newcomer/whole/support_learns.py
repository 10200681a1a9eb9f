"""The support agent settles nine in ten complaints of customers it never met, by recipe and from Python, in 6 minutes.

`make test-support` names this file; `make test` does not find it, since each of its runs takes minutes.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MINUTES = 6
RECIPES = {"grpo": "support", "ppo": "support-ppo", "starpo-s": "support-starpo-s"}


@pytest.mark.parametrize("algorithm", RECIPES)
@pytest.mark.parametrize("way", ["recipe", "python"])
def test_nine_in_ten(way, algorithm, tmp_path):
    command = {
        "recipe": [
            "-m",
            "turnwise",
            "train",
            f"examples/{RECIPES[algorithm]}.yaml",
            "--run",
            f"runs/support-{algorithm}",
        ],
        "python": ["examples/support.py", algorithm],
    }[way]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=variables, text=True, capture_output=True)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr[-4000:]
    lines = (tmp_path / f"runs/support-{algorithm}/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = [record["evaluate/success"] for record in map(json.loads, lines) if record["stage"] == "evaluate"]
    assert held_out[0] < 0.5, "the cold start leaves something to learn"
    assert held_out[-1] >= 0.9
    assert seconds < 60 * MINUTES
