"""How a mutant's tests are chosen, run and judged, over one small tree with a test of its own."""

import os
import signal
import time
from pathlib import Path

import pytest
from count import Draw, Result, fill_page, write_count
from tracing import MODULE_LEVEL, choose_tests
from trial import ROOT, Alarm, Traced, cpu_seconds, end, first_failure, is_stuck, read_outcome, seconds_of

PLACE = "src/turnwise/credit/gae.py:12"
OTHER = "src/turnwise/credit/scan.py:9"


def test_the_rooms_own_and_most_specific_tests_run_first():
    tests = [
        Traced("tests/training/test_trainer.py::test_quick", 0.01, frozenset({PLACE})),
        Traced("tests/credit/test_gae.py::test_broad", 0.01, frozenset({PLACE, OTHER})),
        Traced("tests/credit/test_gae.py::test_narrow", 0.01, frozenset({PLACE})),
        Traced("tests/credit/test_gae.py::test_slow", 30.0, frozenset({PLACE})),
        Traced("tests/credit/test_scan.py::test_elsewhere", 0.01, frozenset({OTHER})),
    ]
    first, *later = choose_tests(tests, "src/turnwise/credit/gae.py", 12, 60.0)
    assert [test.test.partition("::test_")[2] for test in first] == ["narrow", "broad"]
    assert [test.test.partition("::test_")[2] for tests in later for test in tests] == ["slow", "quick"]


def test_patience_limits_what_a_survivor_costs():
    tests = [Traced(f"tests/credit/test_gae.py::test_{n}", 10.0, frozenset({PLACE})) for n in range(20)]
    chosen = [test for tests in choose_tests(tests, "src/turnwise/credit/gae.py", 12, 45.0) for test in tests]
    assert len(chosen) == 1 + 1 + 1 + 4, "one in each of the short rounds, and 45 seconds of them"


def test_the_fixtures_that_a_test_waits_for_are_a_part_of_its_time_and_taken_once_in_a_file():
    tests = [Traced(f"tests/credit/test_gae.py::test_{n}", 0.1, frozenset({PLACE}), 13.0) for n in range(3)]
    quick = Traced("tests/credit/test_scan.py::test_quick", 0.2, frozenset({PLACE}))
    assert seconds_of([tests[0]]) == pytest.approx(13.1)
    assert seconds_of([*tests, quick]) == pytest.approx(13.5)
    first, then, *later = choose_tests([*tests, quick], "src/turnwise/credit/gae.py", 12, 60.0)
    assert (first, then) == ([quick], [tests[0]]), "whichever runs first waits"
    assert [test for tests in later for test in tests] == tests[1:]


def test_what_runs_on_import_is_tried_by_tests_that_execute_the_file_or_make_a_dataclass_of_it():
    maker = Traced(
        "tests/credit/test_gae.py::test_default", 0.1, frozenset({f"src/turnwise/credit/gae.py:{MODULE_LEVEL}"})
    )
    caller = Traced("tests/credit/test_gae.py::test_call", 0.2, frozenset({PLACE}))
    other = Traced("tests/credit/test_scan.py::test_elsewhere", 0.01, frozenset({OTHER}))
    assert choose_tests([caller, maker, other], "src/turnwise/credit/gae.py", MODULE_LEVEL, 5.0) == [[maker, caller]]
    assert choose_tests([caller, maker, other], "src/turnwise/credit/gae.py", 12, 5.0) == [[caller]]


def test_tests_whose_processes_are_not_traced_come_after_quicker_ones_that_are():
    quick = [Traced(f"tests/learner/test_batch_rows.py::test_{n}", 0.1, frozenset({PLACE, OTHER})) for n in range(2)]
    starter = Traced("tests/learner/test_parallel.py::test_both", 0.0, frozenset(), 33.0)
    assert choose_tests([starter, *quick], "src/turnwise/credit/gae.py", MODULE_LEVEL, 60.0) == [quick, [starter]]


def test_a_function_that_no_test_executes_is_tried_by_tests_of_its_file():
    tests = [Traced("tests/credit/test_gae.py::test_a", 0.1, frozenset({PLACE}))]
    assert choose_tests(tests, "src/turnwise/credit/gae.py", 99, 5.0) == [tests]


def run_endless(log: Path) -> int:
    """The exit code of a child in which a test never ends."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 1)
        alarm = Alarm({"tests/a.py::test_endless": 0.0}, grace=0.2)
        alarm.pytest_runtest_logstart("tests/a.py::test_endless")
        sum(iter(int, 1))  # foreign code, in which no Python handler would run
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_test_that_never_ends_is_a_timeout_of_that_test(tmp_path):
    code = run_endless(tmp_path / "log")
    assert code == -signal.SIGPROF
    assert read_outcome(code, tmp_path / "log") == "timeout"
    assert first_failure(tmp_path / "log") == "tests/a.py::test_endless"


def test_the_cpu_time_of_a_session_is_that_of_all_its_processes():
    """A child that computes in a process of its own, and waits for it."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            while time.process_time() < 0.3:
                pass
            os._exit(0)
        os.wait()
        time.sleep(60)
    try:
        deadline = time.monotonic() + 30
        while cpu_seconds(child) < 0.2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert 0.2 <= cpu_seconds(child) < 5
    finally:
        end(child)


def test_late_tests_are_stuck_if_they_hardly_compute_or_have_computed_too_long():
    assert is_stuck(3.0, 3.5, most=100.0), "they wait for ever"
    assert not is_stuck(3.0, 5.0, most=100.0), "the machine is busy"
    assert is_stuck(90.0, 101.0, most=100.0), "they compute for ever"


@pytest.mark.parametrize(
    ("code", "log", "outcome"),
    [
        (0, "", "survived"),
        (1, "FAILED tests/a.py::test_b - x", "caught"),
        (4, "_ ERROR collecting tests/a.py _", "caught"),
    ],
)
def test_outcomes(code, log, outcome, tmp_path):
    (tmp_path / "log").write_text(log)
    assert read_outcome(code, tmp_path / "log") == outcome


def test_tests_that_pytest_cannot_find_are_an_error_of_the_count(tmp_path):
    (tmp_path / "log").write_text("ERROR: not found: tests/a.py::test_b")
    with pytest.raises(AssertionError, match="could not find"):
        read_outcome(4, tmp_path / "log")


def result(outcome, *, room="credit", kind="sign", diff=("-x = -a", "+x = (a)")):
    return Result(
        room=room,
        file=f"src/turnwise/{room}/f.py",
        line=1,
        function="f",
        kind=kind,
        outcome=outcome,
        tests=1,
        diff=list(diff),
    )


def test_the_count_of_a_page(tmp_path):
    results = [result("caught"), result("timeout"), result("survived"), result("caught", room="learner")]
    results[0].retried = True
    controls = [result("survived", kind="control", diff=()), result("caught", kind="control", diff=())]
    draw = Draw(seed=1, drawn=5, possible=100, tests=7, versions="python 3.12", results=[*results, *controls])
    text = write_count(draw)
    assert "| credit | 3 | 1 | 33.3% | 2 | 1 | 1 | 66.7% |" in text
    assert "| all | 4 | 2 | 50.0% | 3 | 1 | 1 | 75.0% |" in text
    assert "`make mutants N=5 SEED=1`: 4 of 100 possible mutations (1 more were drawn and not tried), 7 tests" in text
    assert "At first: python 3.12. Survivors again: not yet." in text
    assert "Of 2 copies without a change, tried in between, 1 counted as caught." in text
    assert "| credit/f.py, `f` | `x = -a` → `x = (a)` | no test notices |" in text
    assert "Of the 1 survivors, 0 have left the code, 0 compute the same" in text
    assert "and 1 no test notices." in text
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- mutants -->\nold\n<!-- /mutants -->\nafter\n")
    fill_page(page, "new")
    assert page.read_text() == "before\n<!-- mutants -->\nnew\n<!-- /mutants -->\nafter\n"


def test_survivors_are_counted_by_what_became_of_them(monkeypatch):
    """None of them counts as caught."""
    known = {("src/turnwise/losses/f.py", "x = -a", "x = (a)"): "a is always 0"}
    monkeypatch.setattr("count.REASONS", known)
    gone = result("survived", room="learner")
    gone.note = "its line is gone"
    results = [result("survived"), result("survived", room="losses"), gone, result("caught", room="losses")]
    text = write_count(Draw(seed=1, drawn=4, possible=100, results=results))
    assert "| all | 4 | 1 | 25.0% | 1 | 0 | 3 | 25.0% |" in text
    assert "Of the 3 survivors, 1 have left the code, 1 compute the same" in text
    assert "and 1 no test notices." in text
    assert "| losses/f.py, `f` | `x = -a` → `x = (a)` | a is always 0 |" in text


def test_a_draw_that_is_continued_elsewhere_names_both_machines(monkeypatch):
    draw = Draw(seed=1, drawn=2, possible=100)
    for python in ("3.11.7", "3.11.7", "3.12.3"):
        monkeypatch.setattr("platform.python_version", lambda python=python: python)
        draw.began(tests=3, again=False)
    (line,) = [line for line in write_count(draw).splitlines() if line.startswith("At first: ")]
    first, second = line.split("; then ")
    assert first.startswith("At first: python 3.11.7, torch ")
    assert second.startswith("python 3.12.3, torch ")


def test_a_draw_that_was_stopped_is_read_back_and_a_survivor_tried_again_takes_its_own_place(tmp_path):
    draw = Draw(seed=1, drawn=2, possible=100, only=["a.py"])
    draw.add(result("survived"), again=False)
    draw.write(tmp_path / "result.json")
    read = Draw.read(tmp_path / "result.json")
    assert read == draw
    read.began(tests=3, again=True)
    read.add(result("caught"), again=True)
    assert [(one.outcome, one.retried) for one in read.results] == [("caught", True)]
    read.add(result("survived", room="losses"), again=False)
    read.note_gone([])
    assert "| losses/f.py, `f` | `x = -a` → `x = (a)` | its line is not in the code any more" in write_count(read)
    assert read.command == 'make mutants N=2 SEED=1 MUTANTS="--only a.py --again"'


def test_survivors_that_nothing_can_notice_are_in_the_code_as_they_are_described():
    from equivalent import REASONS

    for (path, before, _), reason in REASONS.items():
        assert " ".join(before.split()) in " ".join((ROOT / path).read_text().split()), f"{path}: {before}"
        assert reason
