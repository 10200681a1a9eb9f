"""Row 9: the launch under torchrun that the docs print makes one run, by one writer. tests/training has the proofs."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from snippets import small_sizes, snippets_of

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_command_of_the_docs_makes_one_run(tmp_path):
    """As printed, with sizes appended."""
    shown = [one.text for one in snippets_of(ROOT / "docs" / "walk.md") if one.text.startswith("torchrun ")]
    (command,) = map(shlex.split, shown)
    program = [sys.executable, "-m", "torch.distributed.run", *command[1:]]
    words = command[command.index("turnwise") + 1 :]
    assert words[0] == "train"
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*program, *small_sizes(words)], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["encyclopedia-grpo"]
    lines = (tmp_path / "runs/encyclopedia-grpo/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [record["step"] for record in map(json.loads, lines) if record["stage"] == "train"]
    assert steps == [1], "each step is written once, by one process"
