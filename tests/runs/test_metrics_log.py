"""Metrics: one line each, whole or gone; a resumed file equals the one that was never cut."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from turnwise.errors import RunError
from turnwise.runs import MetricsLog, read_metrics


def log(path: Path) -> MetricsLog:
    return MetricsLog(path, clock=lambda: 1.25)


def test_a_record_is_one_json_object_readable_while_the_log_is_open(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with log(path) as metrics:
        metrics.write(3, "train", {"rollout/reward": 0.5, "batch/rows": np.int64(8), "loss/value": torch.tensor(2.0)})
        line = (
            '{"step": 3, "stage": "train", "time": 1.25, "rollout/reward": 0.5, "batch/rows": 8, "loss/value": 2.0}\n'
        )
        assert path.read_text() == line
    assert read_metrics(path) == [json.loads(line)]


def test_numbers_that_json_cannot_hold_become_null_with_a_warning(tmp_path: Path, caplog):
    with log(tmp_path / "m.jsonl") as metrics, caplog.at_level(logging.WARNING):
        metrics.write(7, "train", {"loss/policy": math.nan, "loss/value": -math.inf, "loss/kl": 0.0})
    [record] = read_metrics(tmp_path / "m.jsonl")
    assert (record["loss/policy"], record["loss/value"], record["loss/kl"]) == (None, None, 0.0)
    assert "loss/policy is nan at step 7" in caplog.text
    assert "loss/value is -inf at step 7" in caplog.text
    assert "loss/kl" not in caplog.text


def test_a_metric_without_an_area_is_our_own_bug(tmp_path: Path):
    with log(tmp_path / "m.jsonl") as metrics, pytest.raises(AssertionError, match="area/name"):
        metrics.write(0, "train", {"reward": 1.0})


def test_a_torn_last_line_is_left_out_by_readers_and_dropped_by_writers(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    with log(path) as metrics:
        metrics.write(1, "train", {"rollout/reward": 0.1})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 2, "stage": "tra')
    assert [record["step"] for record in read_metrics(path)] == [1]
    with log(path) as metrics:
        metrics.write(2, "train", {"rollout/reward": 0.2})
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    assert path.read_bytes().startswith(whole)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "stage": "train"}\nnonsense\n{"step": 2, "stage": "train"}\n')
    with pytest.raises(RunError, match=r"m\.jsonl:2: not a metrics record"):
        read_metrics(path)
    with pytest.raises(RunError, match=r"none\.jsonl: no such metrics file"):
        read_metrics(tmp_path / "none.jsonl")


def write_steps(metrics: MetricsLog, steps: range) -> None:
    for step in steps:
        metrics.write(step, "train", {"rollout/reward": step / 10})
        if step % 2 == 0:
            metrics.write(step, "evaluate", {"evaluate/success": step / 20})


def test_a_resumed_file_equals_the_one_that_was_never_cut(tmp_path: Path):
    with log(tmp_path / "whole.jsonl") as metrics:
        metrics.write(50, "sft", {"sft/loss": 1.0})
        write_steps(metrics, range(1, 9))
    with log(tmp_path / "cut.jsonl") as metrics:
        metrics.write(50, "sft", {"sft/loss": 1.0})
        write_steps(metrics, range(1, 7))
    with (tmp_path / "cut.jsonl").open("a") as file:
        file.write('{"step": 7')
    with log(tmp_path / "cut.jsonl") as metrics:
        metrics.truncate_after(4, stages={"train", "evaluate"})
        write_steps(metrics, range(5, 9))
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_truncating_without_stages_looks_at_every_record(tmp_path: Path):
    with log(tmp_path / "m.jsonl") as metrics:
        metrics.write(50, "sft", {"sft/loss": 1.0})
        write_steps(metrics, range(1, 4))
        metrics.truncate_after(2)
    kept = [(record["step"], record["stage"]) for record in read_metrics(tmp_path / "m.jsonl")]
    assert kept == [(1, "train"), (2, "train"), (2, "evaluate")]
