"""The comparison of a mixture with its environments, each alone, at the size of a test."""

import runpy
from pathlib import Path

from tiny_runs import SIGNALS

ROOT = Path(__file__).parents[2]
RECIPE = f"""
env:
  mixture:
    words: {{name: '{SIGNALS}', weight: 3, max_turns: 3}}
    arms: {{name: bandit, args: {{think: false}}, max_turns: 1, demonstrations: 4}}
model: {{small: {{layers: 1, width: 32, heads: 2, positions: 128, vocabulary: 400, induction: false}}}}
sft: {{demonstrations: 16}}
steps: 1
rollout: {{groups_per_step: 4, group_size: 2, turn_tokens: 4}}
evaluate: {{tasks: 2}}
"""


def test_it_prints_a_row_for_each_environment(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    example = runpy.run_path(str(ROOT / "examples/mixture.py"))
    alone = example["alone"](example["load_config"](tmp_path / "mine.yaml"), "words")
    assert (alone.rollout.groups_per_step, list(alone.env.mixture)) == (3, ["words"])
    example["main"](recipe=str(tmp_path / "mine.yaml"), runs=tmp_path / "runs")
    rows = _table(capsys)
    assert [row[:2] for row in rows] == [
        ["together", "words"],
        ["together", "arms"],
        ["alone", "words"],
        ["alone", "arms"],
    ]
    assert all(len(row) == 8 for row in rows), "a rate and its interval, before and after"
    example["main"](["arms"], recipe=str(tmp_path / "mine.yaml"), runs=tmp_path / "runs")
    assert _table(capsys) == rows[-1:], "what was trained before is read, not trained again"


def _table(capsys):
    lines = capsys.readouterr().out.splitlines()
    return [line.split() for line in lines if line.startswith(("together", "alone"))]
