"""Which tests execute which functions, and the order in which a mutant's tests run.

Invariant: a test is traced only if it passes on the unchanged source, so one that fails here for reasons of its own,
such as another version of a library, never counts as one that notices a mutation.
"""

import ast
import hashlib
import json
import os
import platform
import sys
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from trial import PACKAGE, ROOT, Traced, Tree, fork, run_tests, seconds_of

PROCESS_TESTS = ("tests/learner/test_parallel.py", "tests/learner/test_sharded.py", "tests/training/test_launch.py")
"""Tests that start processes, in which nothing is traced."""
_LONG_FILE, _TESTS_OF_A_PART = 12_000, 5
"""Files longer than so many characters are traced in parts of so many tests."""
MODULE_LEVEL = 0
"""In the place of a function's first line: lines that run on import."""
_FORMAT = 2
"""Of the files that keep what was traced."""
_ROUNDS = (0.5, 2.0, 8.0)
"""Seconds of tests in the first rounds: pytest reads all files of a round before it runs the first test."""


class Tracer:
    """A pytest plugin that records the functions of the package that each test executes.

    What a fixture of the module executes counts for every test of the file: any of them may be the one that looks, and,
    where it runs first, the one that waits for the fixture.
    """

    def __init__(self, source: Path) -> None:
        self._prefix = f"{source.parent}/"
        self._seen: set[str] = set()
        self._shared: set[str] = set()
        self._made: dict[str, float] = {}
        """Seconds that each fixture took which tests share."""
        self._classes: dict[types.CodeType, str] = {}
        """Files of dataclasses, by their `__init__`."""
        self.tests: dict[str, tuple[float, list[str], set[str]]] = {}
        """By name: its seconds, its fixtures, and the functions it executes."""

    def _note(self, code: types.CodeType, frame: types.FrameType) -> None:
        if code.co_filename.startswith(self._prefix):
            self._seen.add(f"{code.co_filename[len(self._prefix) :]}:{code.co_firstlineno}")
        elif code.co_filename == "<string>" and code.co_name == "__init__":
            # A dataclass is made. Its defaults stand in its file, of which the test may execute nothing.
            if code not in self._classes:
                self._classes[code] = file_of_class(frame.f_locals.get("self"), code)
            if self._classes[code].startswith(self._prefix):
                self._seen.add(f"{self._classes[code][len(self._prefix) :]}:{MODULE_LEVEL}")

    def _trace(self, frame, event, argument) -> None:
        """Called when a function begins; no tracer of its lines is returned."""
        self._note(frame.f_code, frame)

    def pytest_runtest_setup(self, item) -> None:
        self._start, self._fixtures = time.monotonic(), item.fixturenames
        self._seen.clear()
        if sys.version_info >= (3, 12):
            self._monitor()
        else:
            threading.settrace(self._trace)
            sys.settrace(self._trace)

    def _monitor(self) -> None:
        """Where Python has it, monitoring: each function reports itself once a test, so tests take no longer."""
        monitoring = sys.monitoring
        if monitoring.get_tool(monitoring.PROFILER_ID) is None:

            def started(code: types.CodeType, offset: int) -> object:
                self._note(code, sys._getframe(1))
                return monitoring.DISABLE

            monitoring.use_tool_id(monitoring.PROFILER_ID, "mutants")
            monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, started)
            monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
        monitoring.restart_events()

    def pytest_runtest_call(self, item) -> None:
        self._shared |= self._seen

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef) -> Generator[None, object, object]:
        """Called when those it depends on are made."""
        began = time.monotonic()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                took = time.monotonic() - began
                self._made[fixturedef.argname] = max(took, self._made.get(fixturedef.argname, 0.0))
                self._start += took  # no part of the time of the test that happens to be the first

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" and report.passed:
            self.tests[report.nodeid] = (time.monotonic() - self._start, self._fixtures, set(self._seen))

    def pytest_sessionfinish(self, session) -> None:
        sys.settrace(None)

    def write(self, file: Path) -> None:
        tests = {
            test: [seconds, sum(self._made.get(name, 0.0) for name in fixtures), sorted(seen | self._shared)]
            for test, (seconds, fixtures, seen) in self.tests.items()
        }
        imported = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
        read = [name.removeprefix(self._prefix) for name in imported if name.startswith(self._prefix)]
        whole = file.with_suffix(".part")
        whole.write_text(json.dumps({"tests": tests, "read": {name: _digest(ROOT / name) for name in sorted(read)}}))
        whole.replace(file)


def file_of_class(made: object, init: types.CodeType) -> str:
    """The file of the class, `made`'s own or one it inherits from, whose `__init__` this is; empty if there is none."""
    for owner in type(made).__mro__:
        if getattr(vars(owner).get("__init__"), "__code__", None) is init:
            return getattr(sys.modules.get(owner.__module__), "__file__", None) or ""
    return ""


@dataclass(frozen=True, slots=True)
class Part:
    """A test file, or the tests of a long one by name, which are traced by themselves."""

    file: Path
    tests: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: Path) -> "list[Part]":
        text = file.read_text()
        names = [node.name for node in ast.parse(text).body if getattr(node, "name", "").startswith("test_")]
        if len(text) < _LONG_FILE or len(names) <= _TESTS_OF_A_PART:
            return [cls(file)]
        starts = range(0, len(names), _TESTS_OF_A_PART)
        return [cls(file, tuple(names[start : start + _TESTS_OF_A_PART])) for start in starts]

    @property
    def arguments(self) -> list[str]:
        """What pytest runs."""
        path = str(self.file.relative_to(ROOT))
        return [f"{path}::{name}" for name in self.tests] or [path]

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.file.read_bytes() + " ".join(self.tests).encode()).hexdigest()[:12]
        return f"{'.'.join(self.file.relative_to(ROOT).parts)}.{digest}"


def trace(
    tree: Tree, files: Iterable[Path], cache: Path, *, jobs: int, tell: Callable[[str], None]
) -> tuple[list[Traced], list[str]]:
    """Runs test files, each in a child, `jobs` at a time; returns the tests that pass, and what has none.

    What is known of a file is read from `cache` as long as it, the modules it imported, the tests' support and Python
    are the same.
    """
    support = _digest(*sorted((ROOT / "tests/support").glob("*.py")), ROOT / "tests/conftest.py")
    common = f"{support}.{platform.python_version()}.{_FORMAT}.json"
    known = {part: cache / f"{part.name}.{common}" for file in files for part in Part.of(file)}
    waiting = sorted((part for part in known if not _holds(known[part])), key=lambda part: -part.file.stat().st_size)
    running: dict[int, tuple[Part, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            part = waiting.pop(0)
            running[_start_tracing(tree, part, known[part])] = (part, time.monotonic())
        child, _ = os.wait()
        part, began = running.pop(child)
        tell(f"traced {part.arguments[0]} in {time.monotonic() - began:.0f} s")
    traced: list[Traced] = []
    nothing: list[str] = []
    for part, result in known.items():
        tests = json.loads(result.read_text())["tests"] if result.exists() else {}
        traced += [Traced(test, seconds, frozenset(seen), setup) for test, (seconds, setup, seen) in tests.items()]
        nothing += [] if tests else part.arguments
    return traced, nothing


def _holds(trace: Path) -> bool:
    """Whether a trace is there and the modules of the package that its tests imported are as they were."""
    read = json.loads(trace.read_text())["read"] if trace.exists() else {}
    return bool(read) and all((ROOT / path).is_file() and _digest(ROOT / path) == was for path, was in read.items())


def _start_tracing(tree: Tree, part: Part, result: Path) -> int:
    def work() -> int:
        tracer = Tracer(tree.source)
        run_tests(part.arguments, plugins=[tracer])
        tracer.write(result)
        return 0

    return fork(tree, result.with_suffix(".log"), work)


def choose_tests(traced: Sequence[Traced], path: str, first_line: int, patience: float) -> list[list[Traced]]:
    """Tests that execute the function, in rounds: the room's own first, then the quickest; `patience` seconds in all.

    Where none was seen to (module level, or only in processes that tests start), tests that start processes and those
    that execute the file or make a dataclass of it, and else those of the room.
    """
    by_place: dict[str, list[Traced]] = defaultdict(list)
    for test in traced:
        for place in {*test.functions, *(place.partition(":")[0] for place in test.functions)}:
            by_place[place].append(test)
    room = path.removeprefix(f"{PACKAGE}/").partition("/")[0]
    starters = [test for test in traced if test.test.startswith(PROCESS_TESTS)]
    chosen = by_place[f"{path}:{first_line}"] if first_line != MODULE_LEVEL else []
    chosen = chosen or [*starters, *(test for test in by_place[path] if test not in starters)]
    chosen = list(chosen or (test for test in traced if test.test.startswith(f"tests/{room}/")))
    own = tuple(f"tests/{name}/" for name in (room, "mutants"))

    def cost(test: Traced) -> float:
        """A test that executes little else is about this function; one whose processes are not traced may be."""
        return seconds_of([test]) * max(len(test.functions), 1)

    chosen.sort(key=lambda test: (not test.test.startswith(own), cost(test), test.test))
    rounds: list[list[Traced]] = []
    for limit in (*_ROUNDS, patience):
        count = min(len(chosen), 1)
        while count < len(chosen) and seconds_of(chosen[: count + 1]) <= limit:
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
