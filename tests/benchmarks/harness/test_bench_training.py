"""Training jobs are runs of the trainer: they share a cold start, go on after a kill, and return what was measured."""

import math
from pathlib import Path

import pytest

from benchmarks.harness.jobs import JobFolders
from benchmarks.harness.training import read_column, read_unfinished, train, training_job
from benchmarks.harness.worker import run_job
from tiny_bench import tiny_config
from turnwise.errors import RunError
from turnwise.runs import read_metrics


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    cold = training_job("cold/seed-3", tiny_config(steps=0, seed=3))
    warm = training_job("warm/rloo/seed-3", tiny_config(steps=2, seed=3, credit={"estimator": "rloo"}), after=cold)
    outcomes = [run_job(job, root) for job in (cold, warm)]
    assert [outcome.failure for outcome in outcomes] == ["", ""]
    return root, cold, warm, outcomes


def test_results_are_what_the_run_measured(done):
    root, _, _, (_, warm) = done
    records = read_metrics(root / "warm/rloo/seed-3/run/metrics.jsonl")
    for stage in ("train", "evaluate"):
        written = [record for record in records if record["stage"] == stage]
        assert read_column(warm.result, stage, "step") == [record["step"] for record in written]
    assert read_column(warm.result, "train", "step") == [1, 2]
    assert read_column(warm.result, "evaluate", "step") == [0, 1, 2]
    rewards = [record["rollout/reward"] for record in records if record["stage"] == "train"]
    assert read_column(warm.result, "train", "rollout/reward") == rewards
    assert warm.about["machine"]
    assert "torch" in warm.about["versions"]


def test_it_begins_with_the_model_of_the_job_before(done):
    """The cold start's own weights are what the first evaluation met: equal episodes, equal results."""
    _, _, _, (cold, warm) = done
    before = [read_column(one.result, "evaluate", "evaluate/reward")[0] for one in (cold, warm)]
    assert before[0] == before[1]
    assert warm.job.settings["config"]["sft"] is None
    assert warm.job.settings["config"]["model"]["name"] == "small", "no path of this machine is part of what it is"


def test_a_killed_run_goes_on_from_its_checkpoint(done, tmp_path: Path):
    """The whole run was killed before its result was written: nothing is sampled a second time."""
    root, cold, warm, outcomes = done
    again = train(warm.settings, JobFolders(own=root / warm.name, before=root / cold.name))
    assert again == outcomes[1].result
    assert "resumed after step 2" in _said(run_job, warm, root)


def test_what_an_unfinished_run_has_measured(done, tmp_path: Path):
    root, cold, warm, outcomes = done
    assert read_unfinished(warm, root) == outcomes[1].result
    assert read_unfinished(warm, tmp_path) is None, "not begun"
    other = training_job(warm.name, tiny_config(steps=3, seed=3), after=cold)
    assert read_unfinished(other, root) is None, "what is there is of other settings"


def test_metrics_that_are_not_there():
    results = {"train": {"step": [1, 2], "a/b": [0.5, None]}}
    assert read_column(results, "train", "a/b")[0] == 0.5
    assert math.isnan(read_column(results, "train", "a/b")[1])
    with pytest.raises(RunError, match="no metric 'a/c' in its stage 'train': there are step, a/b"):
        read_column(results, "train", "a/c")


def test_a_cold_start_whose_model_is_gone(done, tmp_path: Path):
    _, cold, warm, _ = done
    (tmp_path / cold.name).mkdir(parents=True)
    outcome = run_job(warm, tmp_path)
    assert "has no checkpoint to start from; delete its job's folder" in outcome.failure


def _said(run_job, job, root: Path) -> str:
    (root / job.name / "result.json").unlink()
    assert run_job(job, root).failure == ""
    return (root / job.name / "log.txt").read_text()
