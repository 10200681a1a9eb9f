"""Training jobs are runs of the trainer: they share a cold start, go on after a kill, and return what was measured."""

import math
from pathlib import Path

import pytest

from benchmarks.harness.jobs import Place
from benchmarks.harness.training import read_column, train, training_job
from benchmarks.harness.worker import perform
from tiny_bench import tiny_config
from turnwise.errors import RunError
from turnwise.runs import read_metrics


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    root = tmp_path_factory.mktemp("bench")
    cold = training_job("cold/seed-3", tiny_config(steps=0, seed=3))
    warm = training_job("warm/rloo/seed-3", tiny_config(steps=2, seed=3, credit={"estimator": "rloo"}), after=cold)
    outcomes = [perform(job, root) for job in (cold, warm)]
    assert [outcome.failure for outcome in outcomes] == ["", ""]
    return root, cold, warm, outcomes


def test_figures_are_what_the_run_measured(done):
    root, _, _, (_, warm) = done
    records = read_metrics(root / "warm/rloo/seed-3/run/metrics.jsonl")
    for stage in ("train", "evaluate"):
        written = [record for record in records if record["stage"] == stage]
        assert read_column(warm.figures, stage, "step") == [record["step"] for record in written]
    assert read_column(warm.figures, "train", "step") == [1, 2]
    assert read_column(warm.figures, "evaluate", "step") == [0, 1, 2]
    rewards = [record["rollout/reward"] for record in records if record["stage"] == "train"]
    assert read_column(warm.figures, "train", "rollout/reward") == rewards
    assert warm.about["machine"]
    assert "torch" in warm.about["versions"]


def test_it_begins_with_the_model_of_the_job_before(done):
    """The cold start's own weights are what the first evaluation met: equal episodes, equal figures."""
    _, _, _, (cold, warm) = done
    before = [read_column(one.figures, "evaluate", "evaluate/reward")[0] for one in (cold, warm)]
    assert before[0] == before[1]
    assert warm.job.settings["config"]["sft"] is None
    assert warm.job.settings["config"]["model"]["name"] == "small", "no path of this machine is part of what it is"


def test_a_killed_run_goes_on_from_its_checkpoint(done, tmp_path: Path):
    """The whole run was killed before its result was written: nothing is sampled a second time."""
    root, cold, warm, outcomes = done
    again = train(warm.settings, Place(folder=root / warm.name, before=root / cold.name))
    assert again == outcomes[1].figures
    assert "resumed after step 2" in _said(perform, warm, root)


def test_metrics_that_are_not_there():
    figures = {"train": {"step": [1, 2], "a/b": [0.5, None]}}
    assert read_column(figures, "train", "a/b")[0] == 0.5
    assert math.isnan(read_column(figures, "train", "a/b")[1])
    with pytest.raises(RunError, match="no metric 'a/c' in its stage 'train': there are step, a/b"):
        read_column(figures, "train", "a/c")


def test_a_cold_start_whose_model_is_gone(done, tmp_path: Path):
    _, cold, warm, _ = done
    (tmp_path / cold.name).mkdir(parents=True)
    outcome = perform(warm, tmp_path)
    assert "has no checkpoint to begin from; delete its job's folder" in outcome.failure


def _said(perform, job, root: Path) -> str:
    (root / job.name / "result.json").unlink()
    assert perform(job, root).failure == ""
    return (root / job.name / "log.txt").read_text()
