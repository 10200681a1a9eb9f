"""Disks that are full or read-only, damaged trajectories and stray files: one line, and what was saved goes on."""

import errno
import os
import random
from functools import partial

import numpy as np
import pytest
import torch

from sandboxed import ON_LINUX
from tiny_runs import records, run_tiny, same_weights, weights
from turnwise.cli.main import main
from turnwise.errors import RunError
from turnwise.runs import files
from turnwise.runs.checkpoints import Checkpoints
from turnwise.runs.store import read_rows, read_trajectories, trajectory_of

LONG = os.environ.get("TURNWISE_FAULTS") == "long"
FAULTS = {
    "full": (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    "read-only": (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
    "quota": (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded"),
    "safetensors": (RuntimeError("I/O error: No space left on device (os error 28)"), "No space left on device"),
    "torch": (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/3"), "could not be written in"),
}


@pytest.fixture(scope="module")
def whole(sections, tmp_path_factory):
    return run_tiny(tmp_path_factory.mktemp("whole") / "run", **{**sections, "steps": 3, "checkpoint": {"every": 1}})


@pytest.mark.parametrize("fault", FAULTS if LONG else ("full", "safetensors"))
def test_a_disk_that_fails_is_one_line_and_the_run_goes_on_from_what_was_saved(
    fault, sections, whole, tmp_path, monkeypatch
):
    """After the checkpoint of the first step every write fails; later the disk is mended."""
    settings = {**sections, "steps": 3, "checkpoint": {"every": 1}}
    error, words = FAULTS[fault]

    def failing(path) -> None:
        if (tmp_path / "run/checkpoints/step-000001").exists():
            raise error
        sync(path)

    sync = files.sync
    for module in ("turnwise.runs.files", "turnwise.runs.manifest", "turnwise.runs.checkpoints"):
        monkeypatch.setattr(f"{module}.sync", failing)
    with pytest.raises(RunError, match=words) as told:
        run_tiny(tmp_path / "run", **settings)
    assert "\n" not in str(told.value)
    assert "what was saved is whole: mend it, then --resume" in str(told.value)
    monkeypatch.undo()
    resumed = run_tiny(tmp_path / "run", resume=True, **settings)
    assert same_weights(weights(resumed, 3), weights(whole, 3))
    assert records(resumed, "train") == records(whole, "train")
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_a_report_that_cannot_be_written_is_one_line(whole, monkeypatch, capsys):
    def read_only(path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("turnwise.runs.files.sync", read_only)
    assert main(["report", str(whole.path)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert line.endswith(": Read-only file system")


def test_other_errors_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), files.one_line_disk_error(tmp_path):
        (tmp_path / "none").read_text()
    with pytest.raises(ValueError, match="os error 2"), files.one_line_disk_error(tmp_path):
        raise ValueError("no such file (os error 2)")


@ON_LINUX
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_known_by_its_error():
    with open("/dev/full", "wb", buffering=0) as file, pytest.raises(OSError, match="No space") as told:
        file.write(b"x")
    assert files.describe_disk_error(told.value) == "No space left on device"


def damage(data: bytes, chance: random.Random) -> bytes:
    """A flipped, cut, doubled or overwritten piece."""
    at, length = chance.randrange(len(data)), chance.choice([1, 1, 4, 64, 1000])
    match chance.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + data[at : at + length] + data[at:]
        case 3:
            return data[:at] + chance.randbytes(length) + data[at + length :]
        case _:
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def test_damaged_trajectories_are_one_line(whole, tmp_path):
    data = whole.trajectory_file("train", 1).read_bytes()
    file, chance = tmp_path / "damaged.parquet", random.Random(0)
    refused = []
    for _ in range(5000 if LONG else 200):
        file.write_bytes(damage(data, chance))
        try:
            read_trajectories(file)
        except RunError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert not [line for line in refused if "\n" in line]


def test_a_damaged_row_is_named(whole):
    row = read_rows(whole.trajectory_file("train", 1))[0]
    for broken in ({"task": "{"}, {"task": "[]"}, {"stop": "whenever"}, {"turns": None}, {"messages": ["{}"]}):
        with pytest.raises(RunError, match="the trajectory of group 0, member 0 of step 1 is damaged"):
            trajectory_of({**row, **broken})


def put_weights(folder, text):
    (folder / "weights").write_text(text)


def test_stray_entries_are_no_checkpoints_and_stop_no_save(tmp_path):
    """A file, a link or a folder with any name, also one that a checkpoint will take."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, partial(put_weights, text="1"))
    for name in ("step-000009", ".step-000002.tmp", ".step-000001.old", "notes.txt", "step-", "step-٣", "STEP-000002"):
        (tmp_path / name).write_text("stray")
    (tmp_path / "step-000008").symlink_to("nowhere")
    (tmp_path / ".step-000003.tmp").symlink_to(tmp_path / "notes.txt")
    (tmp_path / "step-7").mkdir()
    assert checkpoints.steps() == [1]
    assert checkpoints.newest_whole() == tmp_path / "step-000001"
    for step in (2, 3, 9):
        checkpoints.save(step, partial(put_weights, text="more"))
    assert checkpoints.steps() == [3, 9]
    assert checkpoints.newest_whole() == tmp_path / "step-000009"
    assert (tmp_path / "notes.txt").read_text() == "stray"


def test_the_global_generators_are_seeded_by_the_run(sections, tmp_path):
    """Environments of others draw from them: equal seeds, equal draws, whatever was drawn before."""
    drawn = []

    def watch(event: str, number: int) -> bool:
        drawn.append((random.random(), np.random.random(), torch.rand(()).item()))
        return False

    for place, seed in enumerate((7, 7, 8)):
        random.seed(place)
        np.random.seed(place)
        torch.manual_seed(place)
        drawn.append(("seed", seed))
        run_tiny(tmp_path / str(place), die=watch, seed=seed, **{**sections, "steps": 1})
    starts = [place for place, one in enumerate(drawn) if one[0] == "seed"]
    first, second, third = drawn[1 : starts[1]], drawn[starts[1] + 1 : starts[2]], drawn[starts[2] + 1 :]
    assert first
    assert first == second != third
