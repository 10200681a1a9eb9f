"""The count of mutations as a page shows it: the share caught by room, and every survivor.

Invariant: a survivor counts as one even where nothing could notice it; the reason stands beside it.
"""

import dataclasses
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from equivalent import REASONS

ROOMS = ("credit", "losses", "rollout", "learner", "training/trainer.py", "training/cold_start.py")
CONTROL = "control"
"""The kind of a copy with no change."""
_THEN = "; then "
"""Between the machines of a draw."""
_MARKS = re.compile(r"(<!-- mutants -->\n).*?(<!-- /mutants -->)", re.DOTALL)


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
    retried: bool = False
    """It survived at first, and was tried again after tests were written."""
    note: str = ""
    """Of a survivor: why it cannot be tried again."""

    @property
    def is_control(self) -> bool:
        return self.kind == CONTROL


@dataclass(slots=True, kw_only=True)
class Draw:
    """Mutations drawn at random by a seed, and what is known of them so far."""

    seed: int
    drawn: int
    possible: int
    """How many there were to draw from."""
    only: list[str] = field(default_factory=list)
    """The files they were drawn from, where not from all."""
    tests: int = 0
    """How many tests there were to notice them, when they were first tried."""
    versions: str = ""
    """Of Python and torch, when they were first tried."""
    versions_again: str = ""
    """Of Python and torch, when survivors were tried again."""
    results: list[Result] = field(default_factory=list)

    def began(self, *, tests: int, again: bool) -> None:
        versions = f"python {platform.python_version()}, torch {version('torch')}"
        if again:
            self.versions_again = versions
        else:
            # A draw that was stopped may be continued on another machine.
            self.versions = f"{self.versions}{_THEN}{versions}" if self.versions else versions
            self.tests = tests

    def add(self, result: Result, *, again: bool) -> None:
        """Keeps a result; one of a mutation that was tried before takes its place."""
        result.retried = again
        if again:
            place = (result.file, result.function, result.diff)
            self.results = [old for old in self.results if (old.file, old.function, old.diff) != place]
        self.results.append(result)
        self.results.sort(key=lambda result: (result.file, result.line, result.diff))

    def note_gone(self, tried: Sequence[tuple[str, str, list[str]]]) -> None:
        """Survivors that are not among these (file, function, diff) no longer exist; they stay counted as survivors."""
        for result in self.results:
            if result.outcome == "survived" and (result.file, result.function, result.diff) not in tried:
                result.note = "its line is not in the code any more, or a rule leaves it alone now"

    @property
    def command(self) -> str:
        more = [*(["--only", *self.only] if self.only else []), *(["--again"] if self.versions_again else [])]
        return f"make mutants N={self.drawn} SEED={self.seed}" + (f' MUTANTS="{" ".join(more)}"' if more else "")

    def write(self, file: Path) -> None:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1))
        part.replace(file)

    @classmethod
    def read(cls, file: Path) -> "Draw":
        data = json.loads(file.read_text())
        return cls(**data | {"results": [Result(**result) for result in data["results"]]})


def write_count(draw: Draw) -> str:
    tried = [result for result in draw.results if not result.is_control]
    controls = [result for result in draw.results if result.is_control]
    header = "| room | tried | caught at first | share | caught now | of these by timeout | survived | share |"
    lines = [header, "| --- |" + " ---: |" * 7]
    for room in dict.fromkeys([*(room.partition("/")[0] for room in ROOMS), "all"]):
        lines.append(_row(room, [result for result in tried if room in ("all", result.room)]))
    alarms = sum(result.outcome != "survived" for result in controls)
    left = f" ({draw.drawn - len(tried)} more were drawn and not tried)" if len(tried) < draw.drawn else ""
    machines = _THEN.join(dict.fromkeys(draw.versions.split(_THEN)))
    lines += [
        "",
        f"`{draw.command}`: {len(tried)} of {draw.possible} possible mutations{left}, {draw.tests} tests at hand.",
        f"At first: {machines}. Survivors again: {draw.versions_again or 'not yet'}.",
        f"Of {len(controls)} copies without a change, tried in between, {alarms} counted as caught.",
    ]
    survivors = [result for result in tried if result.outcome == "survived"]
    if survivors:
        lines += ["", _count_survivors(survivors)]
        lines += ["", "| survivor | change | why |", "| --- | --- | --- |", *map(_survivor, survivors)]
    return "\n".join(lines)


def fill_page(page: Path, text: str) -> None:
    whole = page.read_text()
    assert _MARKS.search(whole), f"{page}: no <!-- mutants --> ... <!-- /mutants -->"
    page.write_text(_MARKS.sub(lambda match: f"{match[1]}{text}\n{match[2]}", whole))


def _row(name: str, results: Sequence[Result]) -> str:
    outcomes = [result.outcome for result in results]
    survived, late = outcomes.count("survived"), outcomes.count("timeout")
    caught, tried = len(results) - survived, len(results)
    first = sum(result.outcome != "survived" and not result.retried for result in results)
    cells = [tried, first, _share(first, tried), caught, late, survived, _share(caught, tried)]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def _share(caught: int, tried: int) -> str:
    return f"{caught / tried:.1%}" if tried else "–"


def _count_survivors(survivors: Sequence[Result]) -> str:
    same = sum(not one.note and _reason(one) is not None for one in survivors)
    gone = sum(bool(one.note) for one in survivors)
    return (
        f"Of the {len(survivors)} survivors, {gone} have left the code, {same} compute the same or only take longer "
        f"(the reason stands beside each), and {len(survivors) - gone - same} no test notices."
    )


def _reason(result: Result) -> str | None:
    """Why no test can notice it, where that is known."""
    return REASONS.get((result.file, *_lines(result)))


def _lines(result: Result) -> tuple[str, str]:
    """The line as it was, and as mutated."""
    before, after = (" ".join(line[1:].strip() for line in result.diff if line[0] == sign) for sign in "-+")
    return before, after


def _survivor(result: Result) -> str:
    before, after = _lines(result)
    reason = result.note or _reason(result) or "no test notices"
    change = f"`{before}` → `{after}`".replace("|", "\\|")
    place = f"`{result.function}`" if result.function else "outside of functions"
    return f"| {result.file.removeprefix('src/turnwise/')}, {place} | {change} | {reason} |"
