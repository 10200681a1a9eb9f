"""Which tests execute which functions, and whether they notice a mutation.

Invariant: everything runs in forked children over a copy of `src`, so neither the working tree nor this process, which
imports third-party packages once for all of them and never turnwise, is changed. Processes that tests start see the
copy too.
"""

import bisect
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/turnwise"
PROCESS_TESTS = ("tests/learner/test_parallel.py", "tests/training/test_launch.py")
"""Tests that start processes, in which nothing is traced."""
_GRACE = 30.0
"""Seconds a mutant's tests may take beyond four times what they took before."""


@dataclass(slots=True)
class Traced:
    """A test that passes: how long it takes, and the functions it executes as `path:first line`."""

    test: str
    seconds: float
    functions: frozenset[str]


class Tree:
    """A copy of the package's source with at most one mutated file."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("*.egg-info"))

    def write(self, path: str, source: str) -> None:
        """Puts `source` in the place of a file, given by its path in the repository."""
        copy = self.source.parent / path
        copy.write_text(source)
        # Two mutants of one size in one second would share their bytecode.
        for cached in (copy.parent / "__pycache__").glob(f"{copy.stem}.*.pyc"):
            cached.unlink()

    def restore(self, path: str) -> None:
        self.write(path, (ROOT / path).read_text())


def preload() -> None:
    """Imports what tests import and mutants do not change."""
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import rich.console  # noqa: F401
    import torch
    import torch._dynamo
    import torch.distributed
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    torch.set_num_threads(1)


def fork(tree: Tree, log: Path, work: Callable[[], int]) -> int:
    """Runs `work` in a child that imports turnwise from `tree`, and returns the child's process id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    with log.open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(tree.source))
    os.environ |= {"PYTHONPATH": str(tree.source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    code = 70
    try:
        code = work()
    finally:
        sys.stdout.flush()
        os._exit(code)


def run_tests(tests: Sequence[str], *more: str, plugins: Sequence[object] = ()) -> int:
    import pytest

    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line", "--durations=0", "-rfE"]
    return int(pytest.main([*options, "-m", "not slow and not gpu", *more, *tests], plugins=list(plugins)))


def try_mutant(tree: Tree, log: Path, tests: Sequence[Traced]) -> tuple[int, float]:
    """Starts the tests and returns the child's id, and when it is out of time."""
    limit = time.monotonic() + _GRACE + 4 * sum(test.seconds for test in tests)
    return fork(tree, log, lambda: run_tests([test.test for test in tests], "-x")), limit


def end(child: int) -> None:
    """Ends a child and what it started."""
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def first_failure(log: Path) -> str:
    """The test that failed, as pytest's summary names it: `tests/credit/test_gae.py::test_by_hand`."""
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE)
    return found[0] if found else ""


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
        data = {test: [seconds, sorted(seen | self._shared)] for test, (seconds, seen) in self.tests.items()}
        file.write_text(json.dumps(data))


def trace(tree: Tree, files: Iterable[Path], cache: Path, told: Callable[[str], None]) -> list[Traced]:
    """Runs the test files once, each in a child; what is known of one that has not changed is read from `cache`."""
    package = _digest(*sorted((ROOT / PACKAGE).rglob("*.py")))
    traced: list[Traced] = []
    for file in files:
        name = str(file.relative_to(ROOT))
        known = cache / f"{name.replace('/', '.')}.{_digest(file)}.{package}.json"
        if not known.exists():
            began = time.monotonic()

            def work(name: str = name, known: Path = known) -> int:
                tracer = Tracer(tree.source)
                run_tests([name], plugins=[tracer])
                tracer.write(known)
                return 0

            os.waitpid(fork(tree, known.with_suffix(".log"), work), 0)
            told(f"traced {name} in {time.monotonic() - began:.0f} s")
        if known.exists():
            tests = json.loads(known.read_text())
            traced += [Traced(test, seconds, frozenset(seen)) for test, (seconds, seen) in tests.items()]
    return traced


def choose_tests(traced: Sequence[Traced], path: str, first_line: int, limits: Sequence[float]) -> list[list[Traced]]:
    """Tests that execute the function, in rounds of at most so many seconds: the room's own and the quickest first.

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
    chosen.sort(key=lambda test: (not test.test.startswith(own), test.seconds, test.test))
    rounds: list[list[Traced]] = []
    for limit in limits:
        spent = list(itertools.accumulate(test.seconds for test in chosen))
        count = max(bisect.bisect_right(spent, limit), 1)
        rounds.append(_by_file(chosen[:count]))
        chosen = chosen[count:]
    return [tests for tests in rounds if tests]


def _by_file(tests: Iterable[Traced]) -> list[Traced]:
    """Each file is imported once and makes its fixtures once; the quickest files come first."""
    files: dict[str, list[Traced]] = defaultdict(list)
    for test in tests:
        files[test.test.partition("::")[0]].append(test)
    return [test for own in sorted(files.values(), key=lambda own: sum(test.seconds for test in own)) for test in own]


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
