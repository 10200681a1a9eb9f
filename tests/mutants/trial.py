"""Whether tests notice a mutation: forked children over a copy of `src`, one mutated file at a time.

Invariant: neither the working tree nor this process, which imports the package and its tests once for all children, is
changed. Processes that tests start see the copy too. A child has limits on time and memory, so a mutation that makes a
loop endless ends its own child alone.
"""

import compileall
import contextlib
import json
import os
import py_compile
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/turnwise"
TEST_GRACE, GRACE = 10.0, 60.0
"""Seconds of CPU time that one test, and that all tests of a mutant, may take beyond a multiple of what they took
before. An endless loop computes; a busy machine, on which all take long, does not make one of it."""
_IDLE = 1.0
"""Seconds of CPU time; a mutant's tests that took less of it in as much time as their grace wait for ever."""
_MULTIPLE = 5
CANNOT_PATCH = 71
_MEMORY = 12 * 2**30
"""Bytes that a child may allocate: an endless loop that keeps what it makes fails by itself."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A test that passes: how long it takes, and the functions it executes as `path:first line`."""

    test: str
    seconds: float
    functions: frozenset[str]
    setup: float = 0.0
    """Seconds that fixtures take which it shares with others; the first of them to run waits for these."""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def seconds_of(tests: Sequence[Traced]) -> float:
    """How long tests take in one round: each of them, and once the fixtures that those of a file share."""
    setups: dict[str, float] = {}
    for test in tests:
        setups[test.file] = max(test.setup, setups.get(test.file, 0.0))
    return sum(setups.values()) + sum(test.seconds for test in tests)


class Tree:
    """A copy of the package's source with at most one mutated file.

    Bytecode of the other files is made once and never checked against them, so a child compiles one file alone.
    """

    def __init__(self, folder: Path, *, like: "Tree | None" = None) -> None:
        """`like` another tree, bytecode included; without one, a copy of the working tree."""
        self.source = folder / "src"
        shutil.rmtree(folder, ignore_errors=True)
        if like is not None:
            shutil.copytree(like.source, self.source)
            return
        shutil.copytree(ROOT / "src", self.source, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        compileall.compile_dir(self.source, quiet=2, invalidation_mode=_UNCHECKED)

    def write(self, path: str, source: str) -> None:
        """Puts `source` in the place of a file, given by its path in the repository."""
        copy = self.source.parent / path
        copy.write_text(source)
        for cached in (copy.parent / "__pycache__").glob(f"{copy.stem}.*.pyc"):
            cached.unlink()

    def restore(self, path: str) -> None:
        self.write(path, (ROOT / path).read_text())
        py_compile.compile(str(self.source.parent / path), invalidation_mode=_UNCHECKED)


_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH


def preload() -> None:
    """Imports what tests import and mutants do not change."""
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    import bm25s  # noqa: F401
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import rich.console
    import rich.progress  # noqa: F401
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
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = os.pathsep.join([str(tree.source), *others])
    os.environ |= {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
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


def import_tests(tree: Tree, files: Sequence[Path], log: Path) -> None:
    """Imports the package from `tree`, and all test files, into this process."""
    import pytest

    os.chdir(ROOT)
    sys.path.insert(0, str(tree.source))
    with log.open("w") as out, contextlib.redirect_stdout(out):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, files)])
    assert code == 0, f"the tests cannot be collected: {log}"


def try_mutant(
    tree: Tree, log: Path, rounds: Sequence[Sequence[Traced]], prepare: Callable[[], bool]
) -> tuple[int, float]:
    """Starts the tests, round after round until one fails; returns the child's id, and the seconds it may take.

    `prepare` puts the mutation into the child, or says that it cannot.
    """
    limit = GRACE + _MULTIPLE * sum(map(seconds_of, rounds))

    def work() -> int:
        return run_rounds(rounds) if prepare() else CANNOT_PATCH

    return fork(tree, log, work), limit


def run_rounds(rounds: Sequence[Sequence[Traced]]) -> int:
    """Runs tests, round after round until one fails; returns pytest's exit code."""
    alarm = Alarm({test.test: seconds_of([test]) for tests in rounds for test in tests})
    failed = (run_tests([test.test for test in tests], "-x", plugins=[alarm]) for tests in rounds)
    return next((code for code in failed if code), 0)


def run_afresh(tree: Tree, rounds: Sequence[Sequence[Traced]]) -> NoReturn:
    """Goes on as a process that has imported nothing, and so imports the mutated file."""
    file = tree.source.parent / "rounds.json"
    file.write_text(json.dumps([[(test.test, test.seconds, test.setup) for test in tests] for tests in rounds]))
    os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name("rounds.py")), str(file)])


class Alarm:
    """A pytest plugin that ends the process when one test takes much longer than it did, even in foreign code."""

    def __init__(self, seconds: dict[str, float], *, grace: float = TEST_GRACE) -> None:
        self._seconds, self._grace = seconds, grace
        self._log = os.dup(1)  # pytest captures the other one

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.write(self._log, f"\nSTARTED {nodeid}\n".encode())
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, self._grace + _MULTIPLE * self._seconds.get(nodeid, 0.0))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def cpu_seconds(session: int) -> float:
    """The CPU time that the processes of a session have taken, those they have waited for included."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = place.read_text().rpartition(")")[2].split()  # those after the name: state, parent, group, ...
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def is_stuck(before: float, now: float, *, most: float) -> bool:
    """Whether late tests have taken all the CPU time they may, or hardly any since they were last looked at."""
    return now > most or now - before < _IDLE


def end(child: int) -> None:
    """Ends a child and what it started."""
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def first_failure(log: Path) -> str:
    """The test that failed, as pytest's summary names it: `tests/credit/test_gae.py::test_by_hand`."""
    text = log.read_text(errors="replace")
    found = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    started = re.findall(r"^STARTED (.+)$", text, re.MULTILINE)
    return found[0] if found else started[-1] if started else ""


def read_outcome(code: int, log: Path) -> str:
    """`survived`, `caught` or `timeout` from how a child ended: a negative code is the signal that ended it."""
    if code == -signal.SIGPROF:
        return "timeout"
    if code in (4, 5):
        # All these tests were found before; what keeps pytest from them now is an error in importing their file.
        assert "ERROR collecting" in log.read_text(errors="replace"), f"pytest could not find the tests: {log}"
    return "survived" if code == 0 else "caught"
