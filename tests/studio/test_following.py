"""A page that follows a run: it has the recorded curves, and what it costs does not grow with the run."""

import asyncio
import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from benchmarks.studio.made_runs import write_metrics
from benchmarks.studio.page import Page, key_curves, rests
from studio_runs import make_studio_run, serving, write_step
from turnwise.runs import MetricsLog, RunDirectory
from turnwise.runs.findings import FindingsLog
from turnwise.studio import events
from turnwise.studio.answers import Answers
from turnwise.studio.library import Library
from turnwise.studio.shelf import Shelf

NAMES = ["rollout/reward", "policy/entropy", "evaluate/success", "late/metric"]
PARTS = ("step", "time", "value", "low", "high")


def answers_of(folder):
    library = Library([folder])
    (run,) = library.runs()
    return Answers(Shelf(library)), run.id


def extend(had, news):
    """As follow.js does."""
    kept = {} if news["whole"] else had
    for tail in news["series"]:
        before = kept.get(tail["name"])
        joined = before is not None and before["stage"] == tail["stage"]
        kept[tail["name"]] = {
            **tail,
            **{part: (before[part] if joined else []) + tail[part] for part in PARTS if part in tail},
        }
    return kept


def test_what_is_new_makes_the_recorded_curves_with_what_a_page_had(tmp_path):
    run = make_studio_run(tmp_path / "live", steps=2, ended=False)
    answers, run_id = answers_of(tmp_path)
    news = answers.series(run_id, NAMES)
    had = extend({}, news)
    log = MetricsLog(run.metrics)
    writes = [
        lambda: write_step(run, 3),
        lambda: [write_step(run, step) for step in (4, 5, 6)],
        lambda: None,
        lambda: log.write(6, "evaluate", dict.fromkeys(("evaluate/success", "evaluate/success_low"), 0.5)),
        lambda: log.write(7, "train", {"rollout/reward": 0.7, "rollout/episodes": 6.0, "late/metric": 7.0}),
        lambda: log.truncate_after(4),
        lambda: write_step(run, 5),
    ]
    whole = []
    for write in writes:
        write()
        news = answers.series(run_id, NAMES, news["mark"])
        whole.append(news["whole"])
        had = extend(had, news)
        now = answers.series(run_id, NAMES)
        for one in now["series"]:
            gaps = len(one["value"]) - len(had[one["name"]]["value"])
            assert one["value"][:gaps] == [None] * gaps, "a metric that began late has no point before"
            for part in PARTS:
                assert one.get(part, [])[gaps:] == had[one["name"]].get(part, [])
        assert {one["name"] for one in now["series"]} == had.keys()
        assert news["run"]["step"] == now["run"]["step"]
        assert news["run"]["episodes"] == 6 * len(had["policy/entropy"]["value"])
    assert whole == [False] * 5 + [True, False]


def test_findings_and_names_are_sent_where_they_changed(tmp_path):
    run = make_studio_run(tmp_path / "live", steps=2, ended=False)
    answers, run_id = answers_of(tmp_path)
    first = answers.series(run_id, NAMES)
    assert (len(first["findings"]), len(first["metrics"]) > 5) == (2, True)
    write_step(run, 3)
    second = answers.series(run_id, NAMES, first["mark"])
    assert second.keys() == {"mark", "whole", "series", "run", "problems"}
    FindingsLog(run.path / "findings.jsonl").write({"step": 3, "kind": "echo_trap", "sentence": "again"})
    MetricsLog(run.metrics).write(4, "train", {"late/metric": 1.0})
    third = answers.series(run_id, NAMES, second["mark"])
    assert [one["sentence"] for one in third["findings"]][2:] == ["again"]
    assert "late/metric" in [metric["name"] for metric in third["metrics"]]


@pytest.mark.parametrize("mark", ["nonsense", "1.2.3.4", "1.2", "-1.-1.-1.-1", "9" * 5000])
def test_a_mark_of_another_reading_brings_everything(tmp_path, mark):
    make_studio_run(tmp_path / "live")
    answers, run_id = answers_of(tmp_path)
    news = answers.series(run_id, NAMES, mark)
    assert news["whole"]
    assert news["series"] == answers.series(run_id, NAMES)["series"]


def count_work(monkeypatch, work):
    """What it returns, the bytes that it reads from files, and how often it asks the file system."""
    asked = Counter()

    def counted(name, real):
        return lambda *given, **named: (asked.update([name]), real(*given, **named))[1]

    def read_so_far():
        return int(Path("/proc/self/io").read_bytes().split()[1])

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "scandir", "listdir"):
            patch.setattr(os, name, counted(name, getattr(os, name)))
        own = -read_so_far() + read_so_far()
        before = read_so_far()
        found = work()
        return found, read_so_far() - before - own, asked


def refresh_work(folder, steps, monkeypatch):
    """Of a refresh after one more step: bytes read beyond that step's line, file system calls, bytes sent."""
    run, names = RunDirectory.create(folder / "run", "steps: 9\n"), key_curves()
    write_metrics(run, steps=steps, curves=names)
    for step in range(1, steps + 1):
        run.trajectory_file("train", step).touch()
    answers, run_id = answers_of(folder)
    news = answers.series(run_id, names)
    line = run.metrics.read_bytes().splitlines(keepends=True)[0]
    for _ in range(2):  # the first one may import, or fill a cache
        with run.metrics.open("ab") as file:
            file.write(line)
        refresh = partial(answers.series, run_id, names, news["mark"])
        news, read, asked = count_work(monkeypatch, refresh)
    sent = json.dumps({**news, "run": {**news["run"], "spark": []}})
    return read, len(line), asked, len(sent)


def test_what_a_refresh_costs_does_not_grow_with_the_run(tmp_path, monkeypatch):
    read, line, asked, sent = refresh_work(tmp_path / "short", 20, monkeypatch)
    read_long, line_long, asked_long, sent_long = refresh_work(tmp_path / "long!", 600, monkeypatch)
    assert read == 2 * line, "the new line, once for the curves and once for the run's line in the list"
    assert read_long == 2 * line_long
    assert asked_long == asked
    assert sum(asked.values()) < 100
    assert abs(sent_long - sent) < 100
    assert sent < 4000


def test_the_trajectory_files_of_a_run_are_asked_for_once_each(tmp_path, monkeypatch):
    run = RunDirectory.create(tmp_path / "run", "steps: 9\n")
    write_metrics(run, steps=1)
    for step in range(200):
        run.trajectory_file("train", step).touch()
    answers, run_id = answers_of(tmp_path)
    about, _, asked = count_work(monkeypatch, lambda: answers.run(run_id))
    assert len(about["files"]["train"]) == 200
    assert 200 <= sum(asked.values()) < 400, "not once for each folder on the way to each of them"


def listen(library, monkeypatch, looks, write):
    """The events of so many looks; `write(look)` happens between them."""
    monkeypatch.setattr(events, "_SECONDS", 0.0)
    seen = 0

    def stopping():
        nonlocal seen
        write(seen)
        seen += 1
        return seen > looks

    async def all_of():
        return [event async for event in events.watch(library, [], stopping)]

    return asyncio.run(all_of())


def test_a_look_sends_one_event_however_much_was_written(tmp_path, monkeypatch):
    run = make_studio_run(tmp_path / "live", steps=1, ended=False)
    library = Library([tmp_path])

    def write(look):
        if look in (3, 5):
            for step in range(10):
                write_step(run, 10 * look + step)

    sent = listen(library, monkeypatch, 8, write)
    assert [event.split(b"\n")[0] for event in sent] == [b"retry: 2000", b"event: change", b"event: change"]
    assert sum(map(len, sent)) < 200


def test_the_page_of_the_benchmark_asks_what_the_scripts_ask(tmp_path):
    assert {"rollout/reward", "evaluate/success", "policy/entropy"} <= set(key_curves())
    least, most, times = rests()
    assert 1 <= least <= most
    assert times >= 60
    run = make_studio_run(tmp_path / "live", steps=2, ended=False)
    with serving(tmp_path) as client:
        page = Page(client.studio.url, "a-token", client.run_id("live"))
        write_step(run, 3)
        page._refresh()
        assert page.refreshes == 2
        assert page._mark.split(".")[1] == "6", "a cold start, two evaluations, three steps"
        page.close()
