"""The comparison of memories, at the size of a test: each part trains with the memory it is named after."""

import runpy
from pathlib import Path

from turnwise.runs import RunDirectory, read_metrics

ROOT = Path(__file__).parents[2]
TINY = (
    "model.small={layers: 1, width: 32, heads: 2, positions: 512, vocabulary: 400, induction: false}",
    *("sft={demonstrations: 8}", "env.args.rooms=4", "steps=1", "evaluate={tasks: 2}", "checkpoint={every: 1}"),
    *("rollout.groups_per_step=2", "rollout.group_size=2", "rollout.max_turns=8", "rollout.turn_tokens=4"),
)


def test_it_prints_a_row_for_each_memory(tmp_path, capsys):
    example = runpy.run_path(str(ROOT / "examples/memory.py"))
    example["main"](overrides=TINY, runs=tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(tuple(example["PARTS"]))]
    assert [row[0] for row in rows] == ["summary", "oldest", "whole"]
    assert all(len(row) == 7 for row in rows), "a rate and its interval, before and after"
    trained = {part: _last(RunDirectory(tmp_path / part / "seed-0"), "train") for part in example["PARTS"]}
    assert trained["summary"]["env/compactions"] > 0
    assert trained["oldest"]["env/compactions"] > 0
    assert "env/compactions" not in trained["whole"]


def _last(run, stage):
    return [record for record in read_metrics(run.metrics) if record["stage"] == stage][-1]
