"""`python tests/mutants --number 50 --seed 0`: tries mutations of the code that learns and lists what no test notices.

Covers credit, losses, rollout, learner and the trainer's hand-offs. Prints a table by room and the survivors with their
diffs, and writes `runs/mutants/result.json`; `--page FILE` puts both between the page's mutants markers.
"""

import argparse
import dataclasses
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from count import CONTROL, ROOMS, Result, fill_page, write_count
from mutations import Mutation, find_mutations
from patching import Imported
from rich.console import Console
from tracing import choose_tests, trace
from trial import (
    CANNOT_PATCH,
    PACKAGE,
    ROOT,
    Traced,
    Tree,
    end,
    first_failure,
    import_tests,
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
    "agents/test_person.py",
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
    limit: float = 0.0

    @property
    def log(self) -> Path:
        return self.tree.source.parent / "log"

    def start(self, imported: Imported) -> None:
        def prepare() -> bool:
            if self.patched:
                return imported.patch(self.result.file, self.mutation)
            run_afresh(self.tree, self.rounds)

        self.child, self.limit = try_mutant(self.tree, self.log, self.rounds, prepare)


def main(arguments: Sequence[str]) -> int:
    given = _parse(arguments)
    until = time.monotonic() + 60 * given.minutes
    preload()
    FOLDER.mkdir(parents=True, exist_ok=True)
    first = Tree(FOLDER / "tree0")
    trees = [first, *(Tree(FOLDER / f"tree{job}", like=first) for job in range(1, given.jobs))]
    places = [(path, mutation) for path in _sources() for mutation in find_mutations((ROOT / path).read_text())]
    total = len(places)
    # Shuffled whole, so that a larger number tries the same ones first.
    random.Random(given.seed).shuffle(places)
    drawn = places[: given.number or total]
    before: list[Result] = []
    if given.again:
        before, total = _read_results()  # of the mutations there were when they were drawn
        alive = [(result.file, result.diff) for result in before if result.outcome == "survived"]
        drawn = [place for place in places if (place[0], place[1].diff((ROOT / place[0]).read_text())) in alive]
    files = [file.resolve() for file in given.tests or _test_files()]
    import_tests(first, files, FOLDER / "collect.log")
    imported = Imported(first, _sources())
    traced, nothing = trace(trees[0], files, FOLDER, jobs=given.jobs, tell=console.print)
    console.print(f"{len(traced)} tests pass; none of {', '.join(nothing)}" if nothing else f"{len(traced)} tests pass")
    controls = len(drawn) + 1 if given.again else given.controls
    drawn = [*_add_controls(drawn, controls)]
    results = _try_all(drawn, traced, trees, imported, patience=given.patience, until=until)
    for result in results:
        result.retried = given.again
    tried = [(result.file, result.diff) for result in results]
    results += [result for result in before if (result.file, result.diff) not in tried]
    results.sort(key=lambda result: (result.file, result.line, result.diff))
    command = f"make mutants N={sum(not result.is_control for result in results)} SEED={given.seed}"
    command += " MUTANTS=--again" if given.again else ""
    data = {"command": command, "possible": total, "results": [dataclasses.asdict(result) for result in results]}
    (FOLDER / "result.json").write_text(json.dumps(data, indent=1))
    text = write_count(results, possible=total, tests=len(traced), command=command)
    console.print(text, markup=False)
    if given.page:
        fill_page(given.page, text)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=50, help="mutations to try, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of tests for a mutation that survives")
    parser.add_argument("--controls", type=int, default=20, help="one unchanged copy among so many mutations")
    parser.add_argument("--again", action="store_true", help="try the last run's survivors alone, and count them anew")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further mutation is begun")
    parser.add_argument("--tests", type=Path, nargs="+", help="these test files alone, such as those just written")
    parser.add_argument("--page", type=Path, help="a page with mutants markers")
    return parser.parse_args(arguments)


def _add_controls(drawn: Sequence[tuple[str, Mutation]], every: int) -> Iterator[tuple[str, Mutation]]:
    """After each `every` mutations the last of them again, unchanged: its tests must pass."""
    for number, (path, mutation) in enumerate(drawn, 1):
        yield path, mutation
        if number % every == 0:
            yield path, dataclasses.replace(mutation, kind=CONTROL, source=(ROOT / path).read_text())


def _sources() -> list[str]:
    found = [ROOT / PACKAGE / room for room in ROOMS]
    files = [file for place in found for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    return [str(file.relative_to(ROOT)) for file in files]


def _test_files() -> list[Path]:
    found = [ROOT / "tests" / name for name in TESTS]
    return [file for place in found for file in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))]


def _try_all(
    drawn: Sequence[tuple[str, Mutation]],
    traced: Sequence[Traced],
    trees: Sequence[Tree],
    imported: Imported,
    *,
    patience: float,
    until: float,
) -> list[Result]:
    waiting, free = list(drawn), list(trees)
    running: list[Running] = []
    results: list[Result] = []
    while waiting or running:
        if time.monotonic() > until:
            waiting.clear()
        while waiting and free:
            path, mutation = waiting.pop(0)
            rounds = choose_tests(traced, path, mutation.first_line, patience)
            result = _describe(path, mutation, tests=sum(map(len, rounds)))
            if not rounds:
                results.append(dataclasses.replace(result, outcome="survived"))
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
            results.append(one.result)
            result = one.result
            console.print(f"{len(results)}/{len(drawn)} {result.outcome} {result.file}:{result.line} {result.kind}")
    return results


def _finished(one: Running, imported: Imported) -> bool:
    done, status = os.waitpid(one.child, os.WNOHANG)
    if done:
        code = os.waitstatus_to_exitcode(status)
        if one.patched and code in (0, CANNOT_PATCH):
            one.patched = False
            one.start(imported)
            return False
        one.result.outcome = read_outcome(code, one.log)
    elif time.monotonic() < one.limit:
        return False
    else:
        end(one.child)
        one.result.outcome = "timeout"
    if one.result.outcome != "survived":
        one.result.caught_by = first_failure(one.log)
    return True


def _read_results() -> tuple[list[Result], int]:
    """The last run's results, and how many mutations it drew from."""
    data = json.loads((FOLDER / "result.json").read_text())
    return [Result(**result) for result in data["results"]], data["possible"]


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
