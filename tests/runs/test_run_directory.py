"""The run's folder: begun once, resumed only as itself, and never half written."""

import json
import logging
import math
from pathlib import Path

import pytest

from turnwise.errors import RunError
from turnwise.runs import RunDirectory
from turnwise.runs.files import replaced, write_text

CONFIG = "env:\n  name: wiki\ntrainer:\n  steps: 10\n  lr: 0.0001\n"


def test_a_new_run_holds_its_config_its_versions_and_its_folders(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "deep" / "run", CONFIG)
    assert run.config.read_text() == CONFIG
    assert run.trajectories.is_dir()
    assert run.checkpoints.is_dir()
    versions = json.loads(run.versions.read_text())
    assert {"python", "platform", "turnwise", "torch"} <= versions.keys()
    assert RunDirectory.open(run.path) == run
    assert run.trajectory_file("train", 10) == run.path / "trajectories" / "train-000010.parquet"


def test_an_existing_run_asks_for_resume_or_another_name(tmp_path: Path):
    RunDirectory.create(tmp_path / "run", CONFIG)
    with pytest.raises(RunError, match=r"run: this run exists; continue it with --resume or choose another --run$"):
        RunDirectory.create(tmp_path / "run", CONFIG)


def test_resuming_what_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(RunError, match=r"no run to resume; start it without --resume or choose another --run$"):
        RunDirectory.create(tmp_path / "run", CONFIG, resume=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match=r"not a run \(no config\.yaml in it\)"):
        RunDirectory.open(tmp_path / "run")


def test_a_folder_of_other_things_is_not_taken_over(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match=r"contains files that do not belong to a run; choose another --run$"):
        RunDirectory.create(tmp_path, CONFIG)
    with pytest.raises(RunError, match=r"a file, not a folder"):
        RunDirectory.create(tmp_path / "thesis.tex", CONFIG)
    with pytest.raises(RunError, match=r"cannot write a run here"):
        RunDirectory.create(tmp_path / "thesis.tex" / "run", CONFIG)


def test_a_run_killed_before_its_config_was_whole_can_begin_again(tmp_path: Path):
    (tmp_path / ".config.yaml.17.tmp").write_text("env:")
    assert RunDirectory.create(tmp_path, CONFIG).config.read_text() == CONFIG


def test_resume_takes_the_same_config_and_names_the_first_key_that_differs(tmp_path: Path):
    RunDirectory.create(tmp_path / "run", CONFIG)
    RunDirectory.create(tmp_path / "run", CONFIG.replace("0.0001", "1e-4"), resume=True)
    other = CONFIG.replace("wiki", "maze").replace("10", "20")
    found = r"another config: env\.name is 'maze' now and was 'wiki' \(also other: trainer\.steps\); put it back, "
    with pytest.raises(RunError, match=found) as caught:
        RunDirectory.create(tmp_path / "run", other, resume=True)
    assert str(caught.value).endswith(f"turnwise train {tmp_path}/run/config.yaml --run {tmp_path}/run --resume")
    with pytest.raises(RunError, match=r"another config: trainer\.lr is absent now and was 0\.0001"):
        RunDirectory.create(tmp_path / "run", CONFIG.replace("  lr: 0.0001\n", ""), resume=True)


def test_resume_may_raise_the_keys_that_its_caller_allows(tmp_path: Path):
    RunDirectory.create(tmp_path / "run", CONFIG)
    longer = CONFIG.replace("steps: 10", "steps: 20")
    with pytest.raises(RunError, match=r"trainer\.steps is 20 now and was 10"):
        RunDirectory.create(tmp_path / "run", longer, resume=True, may_differ={"trainer.step"})
    run = RunDirectory.create(tmp_path / "run", longer, resume=True, may_differ={"trainer.steps"})
    assert run.config.read_text() == longer


def test_resuming_under_other_versions_is_said_and_the_first_ones_are_kept(tmp_path: Path, caplog):
    run = RunDirectory.create(tmp_path / "run", CONFIG)
    versions = json.loads(run.versions.read_text())
    run.versions.write_text(json.dumps(versions | {"torch": "1.0"}))
    with caplog.at_level(logging.WARNING):
        RunDirectory.create(tmp_path / "run", CONFIG, resume=True)
    assert f"torch 1.0 -> {versions['torch']}" in caplog.text
    assert json.loads(run.versions.read_text())["torch"] == "1.0"


def test_the_summary_is_json_that_every_reader_takes(tmp_path: Path):
    run = RunDirectory.create(tmp_path / "run", CONFIG)
    with pytest.raises(RunError, match=r"summary\.json: no such file"):
        run.read_summary()
    run.write_summary({"rl": 0.93, "naive_rag": math.nan, "curve": [0.1, math.inf], "seed": 3})
    assert run.read_summary() == {"rl": 0.93, "naive_rag": None, "curve": [0.1, None], "seed": 3}
    assert "NaN" not in run.summary.read_text()


def test_a_write_that_fails_leaves_the_old_content_and_no_litter(tmp_path: Path):
    write_text(tmp_path / "a.txt", "old")

    def write_half() -> None:
        with replaced(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_what_a_killed_process_left_half_written_is_swept_when_its_run_goes_on(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    half = run.trajectories / ".train-000001.parquet.4242.tmp"
    half.write_bytes(b"PAR1")
    whole = run.trajectory_file("train", 1)
    whole.write_bytes(b"PAR1PAR1")
    RunDirectory.create(tmp_path / "run", "steps: 1\n", resume=True)
    assert list(run.trajectories.iterdir()) == [whole]
