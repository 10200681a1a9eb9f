"""Which tests execute which functions, and the order in which a mutant's tests run.

Invariant: a test is traced only if it passes on the unchanged source, so one that fails here for reasons of its own,
such as another version of a library, never counts as one that notices a mutation.
"""

import hashlib
import json
import os
import platform
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trial import PACKAGE, ROOT, Traced, Tree, fork, run_tests

PROCESS_TESTS = ("tests/learner/test_parallel.py", "tests/training/test_launch.py")
"""Tests that start processes, in which nothing is traced."""
_ROUNDS = (0.5, 2.0, 8.0)
"""Seconds of tests in the first rounds: pytest reads all files of a round before it runs the first test."""


class Tracer:
    """A pytest plugin that records the functions of the package that each test executes.

    What a fixture of the module executes counts for every test of the file: any of them may be the one that looks.
    """

    def __init__(self, source: Path) -> None:
        self._prefix = f"{source.parent}/"
        self._seen: set[str] = set()
        self._shared: set[str] = set()
        self.tests: dict[str, tuple[float, set[str]]] = {}

    def _profile(self, frame, event, argument) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self._prefix):
            self._seen.add(f"{frame.f_code.co_filename[len(self._prefix) :]}:{frame.f_code.co_firstlineno}")

    def pytest_runtest_setup(self, item) -> None:
        self._start = time.monotonic()
        self._seen.clear()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def pytest_runtest_call(self, item) -> None:
        self._shared |= self._seen

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" and report.passed:
            self.tests[report.nodeid] = (time.monotonic() - self._start, set(self._seen))

    def pytest_sessionfinish(self, session) -> None:
        sys.setprofile(None)

    def write(self, file: Path) -> None:
        tests = {test: [seconds, sorted(seen | self._shared)] for test, (seconds, seen) in self.tests.items()}
        imported = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
        read = [name.removeprefix(self._prefix) for name in imported if name.startswith(self._prefix)]
        whole = file.with_suffix(".part")
        whole.write_text(json.dumps({"tests": tests, "read": {name: _digest(ROOT / name) for name in sorted(read)}}))
        whole.replace(file)


def trace(
    tree: Tree, files: Iterable[Path], cache: Path, *, jobs: int, tell: Callable[[str], None]
) -> tuple[list[Traced], list[str]]:
    """Runs test files, each in a child, `jobs` at a time; returns the tests that pass, and files of which none did.

    What is known of a file is read from `cache` as long as it, the modules it imported, the tests' support and Python
    are the same.
    """
    support = _digest(*sorted((ROOT / "tests/support").glob("*.py")), ROOT / "tests/conftest.py")
    name = f"{support}.{platform.python_version()}.json"
    known = {file: cache / f"{'.'.join(file.relative_to(ROOT).parts)}.{_digest(file)}.{name}" for file in files}
    waiting = sorted((file for file in known if not _holds(known[file])), key=lambda file: -file.stat().st_size)
    running: dict[int, tuple[Path, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            file = waiting.pop(0)
            running[_start_tracing(tree, file, known[file])] = (file, time.monotonic())
        child, _ = os.wait()
        file, began = running.pop(child)
        tell(f"traced {file.relative_to(ROOT)} in {time.monotonic() - began:.0f} s")
    traced: list[Traced] = []
    nothing: list[str] = []
    for file, result in known.items():
        tests = json.loads(result.read_text())["tests"] if result.exists() else {}
        traced += [Traced(test, seconds, frozenset(seen)) for test, (seconds, seen) in tests.items()]
        nothing += [] if tests else [str(file.relative_to(ROOT))]
    return traced, nothing


def _holds(trace: Path) -> bool:
    """Whether a trace is there and the modules of the package that its tests imported are as they were."""
    read = json.loads(trace.read_text())["read"] if trace.exists() else {}
    return bool(read) and all((ROOT / path).is_file() and _digest(ROOT / path) == was for path, was in read.items())


def _start_tracing(tree: Tree, file: Path, result: Path) -> int:
    def work() -> int:
        tracer = Tracer(tree.source)
        run_tests([str(file.relative_to(ROOT))], plugins=[tracer])
        tracer.write(result)
        return 0

    return fork(tree, result.with_suffix(".log"), work)


def choose_tests(traced: Sequence[Traced], path: str, first_line: int, patience: float) -> list[list[Traced]]:
    """Tests that execute the function, in rounds: the room's own first, then the quickest; `patience` seconds in all.

    Where none was seen to (module level, or only in processes that tests start), tests that start processes and those
    that execute the file, and else those of the room.
    """
    by_place: dict[str, list[Traced]] = defaultdict(list)
    for test in traced:
        for place in {*test.functions, *(place.partition(":")[0] for place in test.functions)}:
            by_place[place].append(test)
    room = path.removeprefix(f"{PACKAGE}/").partition("/")[0]
    starters = [test for test in traced if test.test.startswith(PROCESS_TESTS)]
    chosen = by_place[f"{path}:{first_line}"] or [*starters, *(test for test in by_place[path] if test not in starters)]
    chosen = list(chosen or (test for test in traced if test.test.startswith(f"tests/{room}/")))
    own = tuple(f"tests/{name}/" for name in (room, "mutants"))
    # A test that executes little else is about this function.
    chosen.sort(key=lambda test: (not test.test.startswith(own), test.seconds * len(test.functions), test.test))
    rounds: list[list[Traced]] = []
    for limit in (*_ROUNDS, patience):
        spent, count = 0.0, 0
        while count < len(chosen) and (count == 0 or spent + chosen[count].seconds <= limit):
            spent += chosen[count].seconds
            count += 1
        rounds.append(_by_file(chosen[:count]))
        chosen = chosen[count:]
    return [tests for tests in rounds if tests]


def _by_file(tests: Iterable[Traced]) -> list[Traced]:
    """Each file is imported once and makes its fixtures once; files in the order of their first tests."""
    files: dict[str, list[Traced]] = defaultdict(list)
    for test in tests:
        files[test.file].append(test)
    return [test for own in files.values() for test in own]


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
