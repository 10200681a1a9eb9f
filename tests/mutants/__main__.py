"""`python tests/mutants --number 50 --seed 0`: tries mutations of the code that learns and lists what no test notices.

Covers credit, losses, rollout, learner and the trainer's hand-offs. Prints a table by room and the survivors with their
diffs, and writes `runs/mutants/result.json`; `--page FILE` puts the table between the page's mutants markers.
"""

import argparse
import dataclasses
import json
import math
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutations import Mutation, find_mutations
from rich.console import Console
from trial import PACKAGE, ROOT, Traced, Tree, choose_tests, end, first_failure, preload, trace, try_mutant

ROOMS = ("credit", "losses", "rollout", "learner", "training/trainer.py")
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
    "test_types.py",
)
FOLDER = ROOT / "runs" / "mutants"
_MARKS = re.compile(r"(<!-- mutants -->\n).*?(<!-- /mutants -->)", re.DOTALL)

console = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of a mutation: `caught`, `timeout` (caught too) or `survived`."""

    room: str
    file: str
    line: int
    function: str
    kind: str
    outcome: str
    tests: int
    """How many tests were to run."""
    caught_by: str = ""
    """The first test that failed."""
    diff: list[str]


@dataclass(slots=True, kw_only=True)
class Running:
    result: Result
    tree: Tree
    rounds: list[list[Traced]]
    """The tests still to run, if none before them fails."""
    child: int = 0
    limit: float = 0.0

    def start(self) -> None:
        tests = self.rounds.pop(0)
        self.result.tests += len(tests)
        self.child, self.limit = try_mutant(self.tree, self.tree.source.parent / "log", tests)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=50, help="mutations to try, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of tests for each mutation, and if it survives them"
    )
    parser.add_argument("--patience", type=float, default=120.0, help="seconds of further tests if it survives those")
    parser.add_argument("--again", action="store_true", help="try the last run's survivors alone, and count them anew")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further mutation is begun")
    parser.add_argument("--tests", type=Path, nargs="+", help="these test files alone, such as those just written")
    parser.add_argument("--page", type=Path, help="a page with mutants markers")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    preload()
    FOLDER.mkdir(parents=True, exist_ok=True)
    trees = [Tree(FOLDER / f"tree{job}") for job in range(given.jobs)]
    places = [(path, mutation) for path in _sources() for mutation in find_mutations((ROOT / path).read_text())]
    total = len(places)
    # Shuffled whole, so that a larger number tries the same ones first.
    random.Random(given.seed).shuffle(places)
    drawn = places[: given.number or total]
    before = _read_results() if given.again else []
    if given.again:
        alive = [(result.file, result.diff) for result in before if result.outcome == "survived"]
        drawn = [place for place in places if (place[0], place[1].diff((ROOT / place[0]).read_text())) in alive]
    traced = trace(trees[0], [file.resolve() for file in given.tests or _test_files()], FOLDER, console.print)
    limits = (given.seconds, given.patience)
    results = _try_all(drawn, traced, trees, limits, until=time.monotonic() + 60 * given.minutes)
    tried = [(result.file, result.diff) for result in results]
    results += [result for result in before if (result.file, result.diff) not in tried]
    results.sort(key=lambda result: (result.file, result.line, result.diff))
    command = f"make mutants N={len(results)} SEED={given.seed}"
    table = _table(results, total=total, command=command)
    console.print(table)
    for result in results:
        if result.outcome == "survived":
            console.print(f"\n{result.file}:{result.line} {result.function} ({result.kind}, {result.tests} tests)")
            console.print("\n".join(result.diff), markup=False)
    data = {"command": command, "possible": total, "results": [dataclasses.asdict(result) for result in results]}
    (FOLDER / "result.json").write_text(json.dumps(data, indent=1))
    if given.page:
        _fill(given.page, table)
    return 0


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
    limits: Sequence[float],
    *,
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
            rounds = choose_tests(traced, path, mutation.first_line, limits)
            if not rounds:
                results.append(dataclasses.replace(_describe(path, mutation), outcome="survived"))
                continue
            tree = free.pop()
            tree.write(path, mutation.source)
            running.append(Running(result=_describe(path, mutation), tree=tree, rounds=rounds))
            running[-1].start()
        time.sleep(0.05)
        for one in list(running):
            if not _finished(one):
                continue
            one.tree.restore(one.result.file)
            running.remove(one)
            free.append(one.tree)
            results.append(one.result)
            result = one.result
            console.print(f"{len(results)}/{len(drawn)} {result.outcome} {result.file}:{result.line} {result.kind}")
    return results


def _finished(one: Running) -> bool:
    done, status = os.waitpid(one.child, os.WNOHANG)
    if not done:
        if time.monotonic() < one.limit:
            return False
        end(one.child)
        one.result.outcome = "timeout"
        return True
    code = os.waitstatus_to_exitcode(status)
    assert code not in (4, 5), f"pytest could not find the tests: {one.tree.source.parent / 'log'}"
    if code == 0 and one.rounds:
        one.start()
        return False
    one.result.outcome = "survived" if code == 0 else "caught"
    if code:
        one.result.caught_by = first_failure(one.tree.source.parent / "log")
    return True


def _read_results() -> list[Result]:
    return [Result(**result) for result in json.loads((FOLDER / "result.json").read_text())["results"]]


def _describe(path: str, mutation: Mutation) -> Result:
    return Result(
        room=path.removeprefix(f"{PACKAGE}/").partition("/")[0],
        file=path,
        line=mutation.line,
        function=mutation.function,
        kind=mutation.kind,
        outcome="",
        tests=0,
        diff=mutation.diff((ROOT / path).read_text()),
    )


def _table(results: Sequence[Result], *, total: int, command: str) -> str:
    lines = ["| room | tried | caught | survived | share caught |", "| --- | ---: | ---: | ---: | ---: |"]
    rooms = [room.partition("/")[0] for room in ROOMS]
    for name, chosen in [*((room, [r for r in results if r.room == room]) for room in rooms), ("all", list(results))]:
        survived = sum(result.outcome == "survived" for result in chosen)
        share = f"{1 - survived / len(chosen):.1%}" if chosen else "–"
        lines.append(f"| {name} | {len(chosen)} | {len(chosen) - survived} | {survived} | {share} |")
    return "\n".join([*lines, "", f"`{command}`: {len(results)} of {total} possible mutations."])


def _fill(page: Path, table: str) -> None:
    text = page.read_text()
    assert _MARKS.search(text), f"{page}: no <!-- mutants --> ... <!-- /mutants -->"
    page.write_text(_MARKS.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
