"""A checkpoint whose files are not as they were written is noticed, and the newest whole one is used instead."""

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

from tiny_runs import records, run_tiny, same_weights, weights
from turnwise.config import load_run_config
from turnwise.errors import RunError
from turnwise.gateway.serving import _follow
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.targets import load_target

STEPS = 4
NEWEST, BEFORE = "step-000004", "step-000002"
FILES = ("model/model.safetensors", "model/config.json", "model/tokenizer.json", "state.pt", "manifest.json")


@pytest.fixture(scope="module")
def settings(sections):
    return {**sections, "steps": STEPS, "checkpoint": {"every": 2}}


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("whole") / "run", **settings)


@pytest.fixture
def run(whole, tmp_path):
    """A copy of the run, to be broken."""
    shutil.copytree(whole.path, tmp_path / "run")
    return RunDirectory.open(tmp_path / "run")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def swap(file: Path) -> None:
    """With the same file of the checkpoint before; the two are equal where training changes nothing."""
    checkpoint = next(parent for parent in file.parents if parent.name == NEWEST)
    other = checkpoint.parent / BEFORE / file.relative_to(checkpoint)
    ours, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(ours)


WAYS: tuple[Callable[[Path], None], ...] = (flip, truncate, Path.unlink)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", WAYS, ids=lambda way: way.__name__)
def test_damage_is_noticed_and_the_whole_one_used(run, file, damage, caplog):
    damage(run.checkpoints / NEWEST / file)
    with caplog.at_level(logging.WARNING):
        found = Checkpoints(run.checkpoints).newest_whole()
    assert found == run.checkpoints / BEFORE
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"{NEWEST} is broken ({file}: " in line
    assert line.endswith(f"using {BEFORE}")


def test_every_byte_of_a_small_file_counts(run):
    file = run.checkpoints / NEWEST / "model" / "config.json"
    content = file.read_bytes()
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(RunError, match=r"model/config.json: content has changed"):
            Checkpoints(run.checkpoints).require_whole(STEPS)
    file.write_bytes(content)
    Checkpoints(run.checkpoints).require_whole(STEPS)


@pytest.mark.parametrize("file", ["model/model.safetensors", "state.pt", "manifest.json"])
def test_swapped_files_are_noticed_on_both_sides(run, file):
    swap(run.checkpoints / NEWEST / file)
    assert Checkpoints(run.checkpoints).newest_whole() == run.checkpoints / "step-000000"


def test_swapped_folders_are_noticed(run):
    (run.checkpoints / NEWEST).rename(run.checkpoints / "other")
    (run.checkpoints / BEFORE).rename(run.checkpoints / NEWEST)
    (run.checkpoints / "other").rename(run.checkpoints / BEFORE)
    with pytest.raises(RunError, match=r"manifest.json: it is of the checkpoint of step 2"):
        Checkpoints(run.checkpoints).require_whole(STEPS)
    assert Checkpoints(run.checkpoints).newest_whole() == run.checkpoints / "step-000000"


@pytest.mark.parametrize("file", ["model/model.safetensors", "state.pt"])
def test_a_resumed_run_repeats_the_steps_after_the_whole_one(run, whole, settings, file, caplog):
    """As if it had been killed after that checkpoint: the same weights and metrics in the end, each record once."""
    flip(run.checkpoints / NEWEST / file)
    for name in ("train-000003.parquet", "train-000004.parquet"):
        (run.trajectories / name).unlink()
    resumed = run_tiny(run.path, resume=True, **settings)
    assert sum("is broken" in record.getMessage() for record in caplog.records) == 1
    assert same_weights(weights(resumed, STEPS), weights(whole, STEPS))
    assert records(resumed) == records(whole)
    names = [sorted(path.name for path in one.trajectories.iterdir()) for one in (resumed, whole)]
    assert names[0] == names[1]
    assert Checkpoints(run.checkpoints).newest_whole() == run.checkpoints / NEWEST
    assert (run.checkpoints / f".{NEWEST}.broken").is_dir(), "kept, out of the way"


def test_a_run_whose_checkpoints_are_all_broken_is_one_line_and_is_not_trained_over(run, settings):
    before = run.metrics.read_bytes()
    for checkpoint in run.checkpoints.iterdir():
        truncate(checkpoint / "state.pt")
    for use in (lambda: run_tiny(run.path, resume=True, **settings), lambda: load_run_config(run.path)):
        with pytest.raises(RunError, match="no checkpoint is whole: step-000004 is broken") as error:
            use()
        assert "\n" not in str(error.value)
    assert run.metrics.read_bytes() == before


def test_an_evaluation_takes_the_newest_whole_one_and_refuses_a_broken_one_by_name(run):
    """The gateway finds its model the same way."""
    flip(run.checkpoints / NEWEST / "model" / "model.safetensors")
    assert load_target(str(run.path)).model.name == str(run.checkpoints / BEFORE / "model")
    assert load_target(str(run.checkpoints / BEFORE)).model.name == str(run.checkpoints / BEFORE / "model")
    for named in (NEWEST, f"{NEWEST}/model"):
        with pytest.raises(RunError, match=r"this checkpoint is broken \(model/model.safetensors: content has changed"):
            load_target(str(run.checkpoints / named))
    with pytest.raises(RunError, match="this checkpoint is broken"):
        load_target(str(run.path), model=str(run.checkpoints / NEWEST))


def put_state(folder):
    (folder / "state.pt").write_bytes(b"whole")


def test_a_gateway_that_follows_a_run_skips_a_broken_checkpoint_with_one_warning(run, tmp_path, monkeypatch, caplog):
    loaded: list[str] = []
    monkeypatch.setattr("turnwise.gateway.serving._FOLLOW_SECONDS", 0.01)
    monkeypatch.setattr(
        "turnwise.gateway.serving.load_weights", lambda model, folder: loaded.append(folder.parent.name)
    )
    checkpoints = Checkpoints(run.checkpoints)
    flip(checkpoints.path(STEPS) / "model" / "model.safetensors")
    (run.checkpoints / NEWEST).rename(tmp_path / "broken")

    async def watch() -> None:
        following = asyncio.ensure_future(
            _follow(checkpoints, MagicMock(), AsyncMock(), lambda line: None)(MagicMock())
        )
        await asyncio.sleep(0.05)
        (tmp_path / "broken").rename(run.checkpoints / NEWEST)
        await asyncio.sleep(0.3)
        assert loaded == []
        checkpoints.save(STEPS + 1, put_state)
        for _ in range(500):
            await asyncio.sleep(0.01 * (not loaded))
        following.cancel()

    asyncio.run(watch())
    assert loaded == ["step-000005"]
    assert sum("this checkpoint is broken" in record.getMessage() for record in caplog.records) == 1


def test_checkpoints_from_before_manifests_are_used(run, settings):
    for manifest in run.checkpoints.glob("*/manifest.json"):
        manifest.unlink()
    assert Checkpoints(run.checkpoints).newest_whole() == run.checkpoints / NEWEST
    resumed = run_tiny(run.path, resume=True, **{**settings, "steps": STEPS + 1})
    assert Checkpoints(run.checkpoints).newest_whole() == run.checkpoints / "step-000005"
    assert [record["step"] for record in records(resumed, "train")] == [1, 2, 3, 4, 5]


def test_a_stray_entry_is_no_checkpoint_and_a_pin_no_damage(run):
    (run.checkpoints / "step-7").mkdir()
    (run.checkpoints / "notes.txt").touch()
    Checkpoints(run.checkpoints).pin(STEPS)
    (run.checkpoints / NEWEST / "README.md").write_text("the good one")
    assert Checkpoints(run.checkpoints).newest_whole() == run.checkpoints / NEWEST


def test_the_manifest_is_readable_by_others(run):
    """`sha256sum` of each file, and its size."""
    listed = json.loads((run.checkpoints / NEWEST / "manifest.json").read_text())
    assert listed["step"] == STEPS
    assert set(FILES) - {"manifest.json"} <= set(listed["files"])
    assert all(
        one["bytes"] == (run.checkpoints / NEWEST / name).stat().st_size for name, one in listed["files"].items()
    )
