"""What is seen while jobs run, on a terminal and elsewhere."""

import io

from rich.console import Console

from benchmarks.harness.jobs import JobOutcome
from benchmarks.harness.progress import JobBar, JobLines, make_progress
from small_jobs import job


def show(console):
    """Four jobs: one was done before, one is done now, one fails before it begins, one is stopped."""
    with make_progress(console) as progress:
        progress.begin(total=4, kept=1)
        progress.started(job("warm/one"))
        progress.finished(JobOutcome(job=job("warm/one"), result={}, seconds=61.4))
        progress.finished(JobOutcome(job=job("warm/[two]"), failure="not run, since cold failed"))
        progress.started(job("warm/three"))
        progress.finished(JobOutcome(job=job("warm/three"), stopped=True, seconds=9.7))
    return console.file.getvalue()


def test_lines_where_there_is_no_terminal():
    assert show(Console(file=io.StringIO(), width=200)).splitlines() == [
        "1 of 4 jobs were done before and are kept",
        "warm/one  started",
        "2/4  warm/one  done in 61 s",
        "3/4  warm/[two]  failed: not run, since cold failed",
        "warm/three  started",
        "3/4  warm/three  stopped after 10 s",
    ]


def test_a_bar_on_a_terminal_keeps_failures_on_the_screen():
    shown = show(Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor"))
    assert "1 of 4 jobs were done before and are kept" in shown
    assert "warm/[two] failed: not run, since cold failed" in shown
    assert "2/3" in shown, "what was kept is no part of the pace"
    assert "warm/three failed" not in shown


def test_which_of_the_two(monkeypatch):
    assert isinstance(make_progress(Console(file=io.StringIO())), JobLines)
    assert isinstance(make_progress(Console(file=io.StringIO(), force_terminal=True)), JobBar)
    assert isinstance(make_progress(Console(file=io.StringIO(), force_terminal=True, no_color=True)), JobLines)
