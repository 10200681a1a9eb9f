"""`python tests/mutants --number 50 --seed 0`: tries mutations of the code that learns and lists what no test notices.

Covers credit, losses, rollout, learner and the trainer's hand-offs. Prints a table by room and the survivors with their
diffs; `--page FILE` puts both between the page's mutants markers. Every result is in `runs/mutants/result.json` as soon
as it is known: `--continue` tries the rest of a draw that was stopped, and `--report` writes what is there.
"""

import argparse
import dataclasses
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from count import CONTROL, ROOMS, Draw, Result, fill_page, write_count
from mutations import Mutation, find_mutations
from patching import Imported
from rich.console import Console
from tracing import choose_tests, trace
from trial import (
    CANNOT_PATCH,
    GRACE,
    PACKAGE,
    ROOT,
    Traced,
    Tree,
    cpu_seconds,
    end,
    first_failure,
    import_tests,
    is_stuck,
    preload,
    read_outcome,
    run_afresh,
    try_mutant,
)

TESTS = (
    "credit",
    "losses",
    "rollout",
    "learner",
    "stability",
    "oracle",
    "training",
    "mutants",
    "evaluation",
    "faults",
    "scale/test_asynchronous_runs.py",
    "scale/test_cluster.py",
    "scale/test_fleet.py",
    "scale/test_lost_workers.py",
    "scale/test_stream.py",
    "scale/test_stream_waiting.py",
    "agents/test_person.py",
    "newcomer/test_row_06_blocking_tools.py",
    "tools/test_watchdog.py",
    "test_types.py",
)
FOLDER = ROOT / "runs" / "mutants"

console = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True, kw_only=True)
class Running:
    result: Result
    mutation: Mutation
    tree: Tree
    rounds: list[list[Traced]]
    patched: bool = True
    """Its child is patched; else it is a process of its own that imports the mutated file, and all else."""
    child: int = 0
    most: float = 0.0
    """Seconds that its tests may take."""
    looked: float = 0.0
    """When it is next looked at, if its tests are not over by then."""
    used: float = 0.0
    """The CPU time it had taken when it was last looked at."""

    @property
    def log(self) -> Path:
        return self.tree.source.parent / "log"

    def start(self, imported: Imported) -> None:
        def prepare() -> bool:
            if self.patched:
                return imported.patch(self.result.file, self.mutation)
            run_afresh(self.tree, self.rounds)

        self.child, self.most = try_mutant(self.tree, self.log, self.rounds, prepare)
        self.looked, self.used = time.monotonic() + self.most, 0.0

    def is_stuck(self) -> bool:
        """Whether its tests wait or compute for ever; on a busy machine, those that are late may only be slow."""
        before, self.used = self.used, cpu_seconds(self.child)
        self.looked = time.monotonic() + GRACE
        return is_stuck(before, self.used, most=self.most)


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    until = time.monotonic() + 60 * given.minutes
    file = FOLDER / "result.json"
    if not given.report:
        _run_draw(given, file, until)
    draw = Draw.read(file)
    text = write_count(draw)
    console.print(text, markup=False)
    if given.page:
        fill_page(given.page, text)
    return 0


def _run_draw(given: argparse.Namespace, file: Path, until: float) -> None:
    """Tries what is drawn, and writes every result to `file` at once."""
    preload()
    FOLDER.mkdir(parents=True, exist_ok=True)
    first = Tree(FOLDER / "tree0")
    trees = [first, *(Tree(FOLDER / f"tree{job}", like=first) for job in range(1, given.jobs))]
    places = [(path, one) for path in _sources(given.only) for one in find_mutations((ROOT / path).read_text())]
    # Shuffled whole, so that a larger number tries the same ones first.
    random.Random(given.seed).shuffle(places)
    drawn = places[: given.number or len(places)]
    before = Draw.read(file) if given.again or given.resume else None
    if before is not None:
        drawn = _remaining(drawn, before) if given.resume else _survivors(places, before)
    files = [file.resolve() for file in given.tests or _test_files()]
    import_tests(first, files, FOLDER / "collect.log")
    imported = Imported(first, _sources(given.only))
    traced, nothing = trace(trees[0], files, FOLDER, jobs=given.jobs, tell=console.print)
    console.print(f"{len(traced)} tests pass; none of {', '.join(nothing)}" if nothing else f"{len(traced)} tests pass")
    draw = before or Draw(seed=given.seed, drawn=len(drawn), possible=len(places), only=[*map(str, given.only)])
    draw.began(tests=len(traced), again=given.again)
    if given.again:
        draw.note_gone([(path, one.function, one.diff((ROOT / path).read_text())) for path, one in drawn])
    controls = len(drawn) + 1 if given.again else given.controls

    def keep(result: Result) -> None:
        draw.add(result, again=given.again)
        draw.write(file)

    draw.write(file)
    drawn = [*_add_controls(drawn, controls)]
    _try_all(drawn, traced, trees, imported, patience=given.patience, until=until, keep=keep)


Places: TypeAlias = Sequence[tuple[str, Mutation]]
"""Mutations, each with the path of its file in the repository."""


def _survivors(places: Places, before: Draw) -> Places:
    """Those of a draw, and its timeouts, which a busy machine may have made."""
    again = ("survived", "timeout")
    alive = [(one.file, one.function, one.diff) for one in before.results if one.outcome in again]
    return [(path, one) for path, one in places if (path, one.function, one.diff((ROOT / path).read_text())) in alive]


def _remaining(drawn: Places, before: Draw) -> Places:
    tried = [(one.file, one.line, one.diff) for one in before.results if not one.is_control]
    return [(path, one) for path, one in drawn if (path, one.line, one.diff((ROOT / path).read_text())) not in tried]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=50, help="mutations to try, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of tests for a mutation that survives")
    parser.add_argument("--controls", type=int, default=20, help="one unchanged copy among so many mutations")
    parser.add_argument("--only", type=Path, nargs="+", default=[], help="draw from these files of the package alone")
    parser.add_argument(
        "--continue", dest="resume", action="store_true", help="try what is left of a draw that was stopped"
    )
    parser.add_argument("--report", action="store_true", help="write the page from the results at hand, trying nothing")
    parser.add_argument("--again", action="store_true", help="try the last run's survivors and timeouts alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further mutation is begun")
    parser.add_argument("--tests", type=Path, nargs="+", help="these test files alone, such as those just written")
    parser.add_argument("--page", type=Path, help="a page with mutants markers")
    return parser.parse_args(arguments)


def _add_controls(drawn: Places, every: int) -> Iterator[tuple[str, Mutation]]:
    """After each `every` mutations the last of them again, unchanged: its tests must pass."""
    for number, (path, mutation) in enumerate(drawn, 1):
        yield path, mutation
        if number % every == 0:
            yield path, dataclasses.replace(mutation, kind=CONTROL, source=(ROOT / path).read_text())


def _sources(only: Sequence[Path] = ()) -> list[str]:
    found = [file.resolve() for file in only] or [ROOT / PACKAGE / room for room in ROOMS]
    files = [file for place in found for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    return [str(file.relative_to(ROOT)) for file in files]


def _test_files() -> list[Path]:
    found = [ROOT / "tests" / name for name in TESTS]
    return [file for place in found for file in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))]


def _try_all(
    drawn: Places,
    traced: Sequence[Traced],
    trees: Sequence[Tree],
    imported: Imported,
    *,
    patience: float,
    until: float,
    keep: Callable[[Result], None],
) -> None:
    waiting, free = list(drawn), list(trees)
    running: list[Running] = []
    done = 0
    while waiting or running:
        if time.monotonic() > until:
            waiting.clear()
        while waiting and free:
            path, mutation = waiting.pop(0)
            rounds = choose_tests(traced, path, mutation.first_line, patience)
            result = _describe(path, mutation, tests=sum(map(len, rounds)))
            if not rounds:
                keep(dataclasses.replace(result, outcome="survived"))
                done += 1
                continue
            tree = free.pop()
            tree.write(path, mutation.source)
            running.append(Running(result=result, mutation=mutation, tree=tree, rounds=rounds))
            running[-1].start(imported)
        time.sleep(0.05)
        for one in list(running):
            if not _finished(one, imported):
                continue
            one.tree.restore(one.result.file)
            running.remove(one)
            free.append(one.tree)
            keep(one.result)
            done += 1
            result = one.result
            console.print(f"{done}/{len(drawn)} {result.outcome} {result.file}:{result.line} {result.kind}")


def _finished(one: Running, imported: Imported) -> bool:
    done, status = os.waitpid(one.child, os.WNOHANG)
    if done:
        code = os.waitstatus_to_exitcode(status)
        if one.patched and code in (0, CANNOT_PATCH):
            one.patched = False
            one.start(imported)
            return False
        one.result.outcome = read_outcome(code, one.log)
    elif time.monotonic() < one.looked or not one.is_stuck():
        return False
    else:
        end(one.child)
        one.result.outcome = "timeout"
    if one.result.outcome != "survived":
        one.result.caught_by = first_failure(one.log)
    return True


def _describe(path: str, mutation: Mutation, *, tests: int) -> Result:
    return Result(
        room=path.removeprefix(f"{PACKAGE}/").partition("/")[0],
        file=path,
        line=mutation.line,
        function=mutation.function,
        kind=mutation.kind,
        outcome="",
        tests=tests,
        diff=mutation.diff((ROOT / path).read_text()),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
