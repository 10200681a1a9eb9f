"""Checkpoints: whole or not there, pruned with care, and random numbers that go on where they stopped."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from turnwise.errors import RunError
from turnwise.runs import Checkpoints, capture_rng, load_state, restore_rng, save_state


def note(text: str):
    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "note.txt").write_text(text)

    return write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_are_kept(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.latest() is None
    for step in (5, 10, 100, 1_000_000):
        saved = checkpoints.save(step, note(f"at {step}"))
        assert saved == checkpoints.latest() == checkpoints.path(step)
        assert (saved / "model" / "note.txt").read_text() == f"at {step}"
    assert names(checkpoints.folder) == ["step-000100", "step-1000000"]
    assert checkpoints.steps() == [100, 1_000_000]


def test_a_save_that_fails_leaves_nothing_and_loses_nothing(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, note("good"))

    def fail(folder: Path) -> None:
        (folder / "half.txt").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, fail)
    assert names(tmp_path) == ["step-000001"]


def test_what_a_killed_save_left_is_ignored_and_then_swept(tmp_path: Path):
    leftover = tmp_path / ".step-000002.tmp"
    leftover.mkdir()
    (leftover / "half.txt").write_text("half")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    assert leftover.exists(), "a reader must not sweep: the writer may be alive"
    checkpoints.save(2, note("whole"))
    assert names(tmp_path) == ["step-000002"]
    assert not (tmp_path / "step-000002" / "half.txt").exists()


def test_the_temporary_folder_is_never_visible_as_a_checkpoint(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    seen: list[Path | None] = []
    checkpoints.save(1, lambda folder: seen.append(Checkpoints(tmp_path).latest()))
    assert seen == [None]


def test_saving_a_step_again_replaces_it(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, note("first"))
    checkpoints.save(3, note("second"))
    assert (checkpoints.path(3) / "model" / "note.txt").read_text() == "second"
    assert names(tmp_path) == ["step-000003"]


def test_pinned_ones_outlive_restarts_and_held_ones_the_process(tmp_path: Path):
    first = Checkpoints(tmp_path, keep=1)
    first.save(1, note("healthy"))
    first.pin(1)
    first.save(2, note("resumed from"))
    second = Checkpoints(tmp_path, keep=1)
    second.hold(2)
    second.save(3, note("c"))
    second.save(4, note("d"))
    assert second.steps() == [1, 2, 4]
    third = Checkpoints(tmp_path, keep=1)
    third.save(5, note("e"))
    assert third.steps() == [1, 5]


def test_only_those_that_are_wanted_stay_pinned(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (0, 1, 2):
        checkpoints.save(step, note(""))
        checkpoints.pin_only({0, step})
    assert checkpoints.steps() == [0, 1, 2], "what is let go of goes with the next"
    checkpoints.save(3, note(""))
    assert checkpoints.steps() == [0, 2, 3]
    with pytest.raises(RunError, match="no checkpoint of step 1"):
        checkpoints.pin_only({1})


def test_a_step_without_a_checkpoint_names_those_that_have_one(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(RunError, match=r"no checkpoint of step 7; available: none$"):
        checkpoints.path(7)
    checkpoints.save(2, note(""))
    checkpoints.save(4, note(""))
    with pytest.raises(RunError, match=r"no checkpoint of step 7; available: 2, 4$"):
        checkpoints.pin(7)


def draw() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.normal()),
        float(np.random.random()),
        float(torch.randn(())),
        float(torch.rand(3).sum()),
    ]


def test_random_numbers_go_on_where_they_stopped(tmp_path: Path):
    outside = capture_rng()
    draw()
    save_state(tmp_path / "rng.pt", {"rng": capture_rng()})
    expected = draw() + draw()
    draw()
    state = load_state(tmp_path / "rng.pt")["rng"]
    restore_rng(state)  # type: ignore[arg-type]  # load_state gives back what was saved
    assert draw() + draw() == expected
    restore_rng(outside)


@pytest.mark.gpu
def test_random_numbers_on_cuda_go_on_where_they_stopped(tmp_path: Path):
    save_state(tmp_path / "rng.pt", {"rng": capture_rng()})
    expected = torch.rand(4, device="cuda").tolist()
    torch.rand(9, device="cuda")
    restore_rng(load_state(tmp_path / "rng.pt")["rng"])  # type: ignore[arg-type]  # as above
    assert torch.rand(4, device="cuda").tolist() == expected


def test_an_optimizers_state_survives(tmp_path: Path):
    weights = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.AdamW([weights], lr=0.1)
    (weights**2).sum().backward()
    optimizer.step()
    save_state(tmp_path / "state.pt", {"optimizer": optimizer.state_dict(), "step": 1, "who": ("a", None, b"\x00")})
    state = load_state(tmp_path / "state.pt")
    assert (state["step"], state["who"]) == (1, ("a", None, b"\x00"))
    loaded = state["optimizer"]
    assert isinstance(loaded, dict)
    assert loaded["state"][0]["exp_avg"].tolist() == pytest.approx([0.2, 0.4])
    assert loaded["param_groups"] == optimizer.state_dict()["param_groups"]


def test_what_could_not_be_loaded_safely_is_refused_when_saved(tmp_path: Path):
    with pytest.raises(AssertionError, match=r"state\['deep'\]\[1\] is a float64"):
        save_state(tmp_path / "state.pt", {"deep": [1.0, np.float64(2.0)]})
    assert not (tmp_path / "state.pt").exists()


def test_a_state_that_cannot_be_read_is_one_line(tmp_path: Path):
    with pytest.raises(RunError, match=r"none\.pt: missing from this checkpoint"):
        load_state(tmp_path / "none.pt")
    for content in (b"", b"garbage", b"PK\x03\x04torn"):
        (tmp_path / "bad.pt").write_bytes(content)
        with pytest.raises(RunError, match=r"bad\.pt: not a turnwise checkpoint state") as caught:
            load_state(tmp_path / "bad.pt")
        assert "\n" not in str(caught.value)
