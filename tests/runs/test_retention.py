"""Trajectories are thinned by size, age and interest, and nothing is dropped uncounted."""

import random

import pytest

from tiny_runs import records, run_tiny
from turnwise.errors import RunError
from turnwise.runs import read_trajectories, write_trajectories
from turnwise.runs.retention import Retention, Thinned, count_thinned, read_thinned
from turnwise.runs.settings import TrajectorySettings
from turnwise.runs.store import read_rows
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

STEPS, SIZE = 16, 12


def make_step(folder, step, stage="train"):
    """Twelve episodes of rewards 0 to 11, of which the third has failed, each with random numbers per token."""
    noise = random.Random(step)

    def episode(number):
        ids = tuple(noise.randrange(1000) for _ in range(40))
        turn = Turn(context_ids=ids, action_ids=ids, logprobs=(0.5,) * 40, rewards={"r": float(number)}, opens_row=True)
        stop = StopReason.ENV_FAILED if number == 2 else StopReason.DONE
        failure = "step: broken" if number == 2 else ""
        return Trajectory(task=Task(id="t"), turns=(turn,), stop=stop, failure=failure)

    group = Group(task=Task(id="t"), trajectories=tuple(map(episode, range(SIZE))))
    numbers = {(0, member): [noise.random() for _ in range(40)] for member in range(SIZE)}
    per_token = dict.fromkeys(("advantages", "learner_logprobs", "entropies"), numbers)
    write_trajectories(folder / f"{stage}-{step:06d}.parquet", step, [group], per_token, None)
    return group


@pytest.fixture
def folder(tmp_path):
    for step in range(1, STEPS + 1):
        make_step(tmp_path, step)
    make_step(tmp_path, 0, "evaluate")
    return tmp_path


@pytest.fixture(autouse=True)
def _thin_to_the_limit(monkeypatch):
    monkeypatch.setattr("turnwise.runs.retention._DOWN_TO", 1.0)


def size(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def thin(folder, share, **options):
    """Thins down to a share of the present size."""
    limit = share * size(folder) / 1e9
    Retention(folder, TrajectorySettings(max_gigabytes=limit, keep_best=2, keep_worst=1, **options)).thin()
    return limit * 1e9


def by_step(folder):
    return [read_thinned(folder / f"train-{step:06d}.parquet") for step in range(1, STEPS + 1)]


def test_below_the_limit_nothing_is_touched(folder):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    thin(folder, 1.0)
    Retention(folder, TrajectorySettings(max_gigabytes=None)).thin()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert TrajectorySettings().max_gigabytes == 20.0


def test_numbers_per_token_go_first_those_of_the_oldest_steps(folder):
    limit = thin(folder, 0.99)
    assert size(folder) <= limit
    thinned = by_step(folder)
    count = sum(one.without_numbers > 0 for one in thinned)
    assert 0 < count < STEPS - 10
    assert thinned[:count] == [Thinned(without_numbers=SIZE - 4)] * count, "all but two best, one worst, one failed"
    assert thinned[count:] == [Thinned()] * (STEPS - count)
    rows = read_rows(folder / "train-000001.parquet")
    whole = {row["member"] for row in rows if row["turns"][0]["entropies"] is not None}
    assert whole == {0, 2, 10, 11}
    assert len(rows) == SIZE


def test_then_episodes_and_what_is_of_interest_stays_whole(folder, caplog):
    expected = make_step(folder, 1)
    thin(folder, 0.1)
    assert by_step(folder) == [Thinned(dropped=SIZE - 4)] * (STEPS - 10) + [Thinned()] * 10, "the newest stay whole"
    (group,) = read_trajectories(folder / "train-000001.parquet")
    assert group.trajectories == tuple(expected.trajectories[member] for member in (0, 2, 10, 11))
    assert read_thinned(folder / "evaluate-000000.parquet") == Thinned()
    assert count_thinned(folder) == Thinned(dropped=(SIZE - 4) * (STEPS - 10))
    assert "more than trajectories.max_gigabytes: what is left is always kept" in caplog.text


def test_counts_add_up_over_two_passes(folder):
    thin(folder, 0.99)
    thin(folder, 0.1)
    assert by_step(folder)[0] == Thinned(dropped=SIZE - 4)


def test_a_file_that_cannot_be_read_is_left_and_named(folder, caplog):
    (folder / "train-000001.parquet").write_bytes(b"PAR1 no")
    thin(folder, 0.1)
    assert (folder / "train-000001.parquet").read_bytes() == b"PAR1 no"
    assert "train-000001.parquet" in caplog.text
    with pytest.raises(RunError):
        read_thinned(folder / "train-000001.parquet")
    assert count_thinned(folder).dropped == (SIZE - 4) * (STEPS - 11)


def test_a_run_counts_what_it_dropped_in_its_metrics_and_its_report(tmp_path):
    sections = {"steps": 13, "trajectories": {"max_gigabytes": 1e-9}, "checkpoint": {"every": 13}}
    run = run_tiny(tmp_path / "run", evaluate={"tasks": 1}, **sections)
    (end,) = records(run, "end")
    assert end["store/episodes_dropped"] == 3 * (16 - 8)
    assert len(read_trajectories(run.trajectory_file("train", 13))) == 4
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "stored episodes dropped" in page
    assert "limit trajectories.max_gigabytes" in page
