"""A job is done once, whatever happens to the others, and is done again when its settings change."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from benchmarks.harness import pool
from benchmarks.harness.jobs import (
    JobOutcome,
    failures,
    note_piece,
    order_jobs,
    prepare_folder,
    read_outcome,
    write_outcome,
)
from benchmarks.harness.pool import _needed, run_jobs
from benchmarks.harness.worker import run_job
from small_jobs import RecordedProgress, calls, job
from turnwise.errors import RunError


def test_jobs_run_resume_and_fail_apart(tmp_path: Path):
    """One pool for many facts, since every process costs the import of torch."""
    cold = job("cold", a=2.0)
    broken = job("broken/cold", "break_down")
    after_broken = job("broken/warm/one", after=broken)
    jobs = [
        job("warm/one", after=cold, b=3.0),
        job("warm/two", after=cold, b=4.0),
        job("dead", "die"),
        job("broken/evaluated", after=after_broken),
        job("refused", "refuse"),
        job("seen", "look_around"),
        job("many", "start_processes"),
    ]
    progress = RecordedProgress()
    outcomes = run_jobs(jobs, tmp_path, processes=2, progress=progress)
    assert [one.job.name for one in outcomes] == [
        *("cold", "warm/one", "warm/two", "dead", "broken/cold", "broken/warm/one", "broken/evaluated"),
        *("refused", "seen", "many"),
    ]
    by_name = {one.job.name: one for one in outcomes}

    assert by_name["warm/one"].result == {"sum": 5.0, "curve": [0.0, 5.0]}
    assert by_name["warm/two"].result == {"sum": 6.0, "curve": [0.0, 6.0]}
    seen = by_name["seen"].result
    assert seen["threads"] == 1
    assert seen["process"] != os.getpid()
    assert seen["nan"] is None, "the same as when it is read again"
    assert by_name["many"].result == {"absolute": 2}

    assert by_name["dead"].failure == "its process ended with exit code -9"
    assert by_name["broken/warm/one"].failure == "not run, since broken/cold failed"
    assert by_name["broken/evaluated"].failure == "not run, since broken/warm/one failed"
    assert by_name["refused"].failure == "no such lake: dig one"
    assert "KeyError: 'level 3'; see" in by_name["broken/cold"].failure
    assert "Traceback" in (tmp_path / "broken/cold/log.txt").read_text()
    assert [one.job.name for one in failures(outcomes)] == [
        *("dead", "broken/cold", "broken/warm/one", "broken/evaluated", "refused")
    ]

    assert progress.events[0] == ("begin", "10", "0")
    assert progress.events.index(("finished", "cold")) < progress.events.index(("started", "warm/one"))
    assert not {("started", "broken/warm/one"), ("started", "broken/evaluated")} & set(progress.events)
    assert sorted(name for event, name, *_ in progress.events if event == "finished") == sorted(by_name)

    progress = RecordedProgress()
    again = run_jobs(jobs[:2], tmp_path, processes=2, progress=progress)
    assert progress.events == [("begin", "3", "3")], "what was done is not done again"
    assert [one.result for one in again] == [by_name[name].result for name in ("cold", "warm/one", "warm/two")]
    assert all(one.kept for one in again)
    assert (calls(tmp_path, "cold"), calls(tmp_path, "warm/one")) == (1, 1)
    assert read_outcome(jobs[2], tmp_path) is None, "what failed is tried again"


class _Until:
    """A clock that runs out when every one of some jobs has begun its work."""

    def __init__(self, root, *names):
        self._root, self._names = root, names

    @property
    def left(self):
        return 0.0 if all(calls(self._root, name) for name in self._names) else 0.05


def test_time_that_is_over_stops_jobs_and_loses_nothing(tmp_path: Path, monkeypatch):
    saving, long = job("saving", "save_when_stopped"), job("long", "take_long")
    jobs = [saving, long, job("after", after=saving), job("third")]
    monkeypatch.setattr(pool, "_Clock", lambda minutes: _Until(tmp_path, "saving", "long"))
    progress = RecordedProgress()
    outcomes = run_jobs(jobs, tmp_path, processes=2, progress=progress, minutes=1)
    assert [(one.job.name, one.result, one.stopped) for one in outcomes] == [
        (name, None, True) for name in ("saving", "long", "after", "third")
    ]
    assert failures(outcomes) == []
    assert (tmp_path / "saving/log.txt").read_text() == (
        "SIGTERM: this step is finished and saved, then training stops; again stops at once\n"
        "SIGTERM: stopped after step 3, which is saved\n"
    )
    assert {name for event, name, *_ in progress.events if event == "started"} == {"saving", "long"}

    assert json.loads((tmp_path / "saving/job.json").read_text())["seconds"] > 0
    monkeypatch.undo()
    assert [run_job(one, tmp_path).result for one in (saving, long)] == [{"found": "step 3"}, {"done": True}]
    assert (calls(tmp_path, "saving"), calls(tmp_path, "long")) == (2, 2)


def test_a_result_has_the_seconds_of_all_its_pieces(tmp_path: Path, monkeypatch):
    one = job("saving", "save_when_stopped")
    prepare_folder(one, tmp_path)
    note_piece(one, tmp_path, seconds=400.0)
    assert prepare_folder(one, tmp_path) == 400.0, "and a piece that was killed adds none"
    (tmp_path / "saving/saved.txt").write_text("step 3")
    assert 400.0 < run_job(one, tmp_path).seconds < 500.0
    assert 400.0 < read_outcome(one, tmp_path).seconds < 500.0
    assert prepare_folder(job("saving", "save_when_stopped", a=2.0), tmp_path) == 0.0, "another job"


def test_no_job_is_begun_that_would_only_be_stopped(tmp_path: Path):
    """Jobs of this kind took 100 seconds and more; one that saves its work needs no more than a minute of it."""
    done = [JobOutcome(job=job(f"done-{seconds}"), result={}, seconds=seconds) for seconds in (130.0, 100.0)]
    for one in done:
        (tmp_path / one.job.name).mkdir()
        write_outcome(dataclasses.replace(one, about={"machine": "any"}), tmp_path)
    new = job("new")
    progress = RecordedProgress()
    outcomes = run_jobs([*(one.job for one in done), new], tmp_path, processes=1, progress=progress, minutes=1.6)
    assert outcomes[-1] == JobOutcome(job=new, stopped=True)
    assert progress.events == [("begin", "3", "2")]
    assert _needed(new, done) == 100
    assert _needed(dataclasses.replace(new, resumes=True), done) == 60
    assert _needed(job("other", "take_long"), done) == 0, "nothing is known of its kind"


def test_a_job_is_done_again_when_its_settings_or_those_before_it_change(tmp_path: Path):
    cold, changed = job("cold", a=2.0), job("cold", a=10.0)
    for one in (cold, job("warm", after=cold, b=3.0)):
        run_job(one, tmp_path)
    assert read_outcome(job("warm", after=cold, b=3.0), tmp_path).result["sum"] == 5.0
    assert read_outcome(job("warm", after=cold, b=4.0), tmp_path) is None
    assert read_outcome(job("warm", after=changed, b=3.0), tmp_path) is None
    assert [run_job(one, tmp_path).result["sum"] for one in (changed, job("warm", after=changed, b=3.0))] == [
        10.0,
        13.0,
    ]
    assert calls(tmp_path, "warm") == 1, "nothing of the other job was left in its folder"


def test_an_interrupted_job_finds_what_it_had_written(tmp_path: Path):
    one = job("one", "go_on", steps=1)
    assert run_job(one, tmp_path).failure.startswith("RuntimeError: interrupted; see ")
    assert run_job(one, tmp_path).result == {"found": "half done"}
    other = job("one", "go_on", steps=2)
    assert read_outcome(other, tmp_path) is None
    assert run_job(other, tmp_path).failure.startswith("RuntimeError"), "another job begins anew"


def test_a_result_says_what_it_is_the_result_of(tmp_path: Path):
    """JobResults may come from another machine: no more is needed than the result's own file."""
    one = job("one", a=1, b=[1, 2])
    (tmp_path / "there/one").mkdir(parents=True)
    result = {"job": {"after": None, "settings": {"b": [1, 2], "a": 1}, "work": "small_jobs:add"}, "result": {"x": 1}}
    text = json.dumps(result | {"about": {"machine": "2 cores"}, "seconds": 3})
    (tmp_path / "there/one/result.json").write_text(text)
    outcome = read_outcome(one, tmp_path / "there")
    assert outcome == JobOutcome(job=one, result={"x": 1}, about={"machine": "2 cores"}, seconds=3.0, kept=True)
    assert read_outcome(job("one", a=1, b=[1, 3]), tmp_path / "there") is None
    assert read_outcome(job("one", "refuse", a=1, b=[1, 2]), tmp_path / "there") is None


def test_what_a_job_says_is_in_its_log(tmp_path: Path, capfd):
    assert run_job(job("talk", "speak"), tmp_path).result == {}
    assert sorted((tmp_path / "talk/log.txt").read_text().splitlines()) == [
        *("said below", "said to stderr", "said to stdout")
    ]
    os.write(1, b"said after\n")
    assert capfd.readouterr().out == "said after\n"


def test_a_folder_with_other_files_is_not_emptied(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/precious.txt").write_text("mine")
    outcome = run_job(job("one"), tmp_path)
    assert "holds files that are not a job's" in outcome.failure
    assert (tmp_path / "one/precious.txt").read_text() == "mine"


def test_a_torn_result_is_said_to_be_one(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/result.json").write_text('{"job":')
    with pytest.raises(RunError, match=r"one/result\.json: not JSON"):
        read_outcome(job("one"), tmp_path)


def test_the_order_keeps_what_comes_first_first():
    cold = job("cold")
    warm = job("warm", after=cold)
    last = job("last", after=warm)
    other = job("other")
    assert order_jobs([other, last, warm]) == [other, cold, warm, last]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([job("one", a=1), job("one", a=2)], "two different jobs are called one"),
        ([job("one"), job("one/half")], "the folder of one/half would lie within that of one"),
    ],
)
def test_names_that_would_share_a_folder_are_our_own_mistake(jobs, said):
    with pytest.raises(AssertionError, match=said):
        order_jobs(jobs)
