"""Boards in text: the grids of single characters by which games show their state, found to be drawn as squares.

Invariant: the parts of a text, boards written out line by line, are the text again. What a mark means is read from the
rules that the agent was given, so games of one's own are drawn as well.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from turnwise.types import Json

_LEGEND: Final = re.compile(r"(?<!\S)(\S): ([^.\n:]+?)[.,;\n]")
_KINDS: Final = (
    ("wall", "wall"),
    ("hole", "hole"),
    ("box on target", "done"),
    ("you on target", "player"),
    ("you", "player"),
    ("box", "box"),
    ("goal", "goal"),
    ("target", "goal"),
    ("ice", "floor"),
    ("floor", "floor"),
    ("empty", "floor"),
)
"""By words of a legend: how the square is painted."""
_UNTOLD: Final = {"√": ("player at the goal", "done"), "X": ("player in a hole", "lost")}
"""Marks of the built-in games that their rules leave out, lest they cost tokens."""
_LEAST: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """`Mark(meaning="hole, ends it", kind="hole")`."""

    meaning: str
    kind: str


def read_legend(rules: str) -> dict[str, Mark]:
    """What each mark means: `P: you. G: goal, pays 1. O: hole, ends it. _: ice.`"""
    legend = {mark: Mark(meaning=meaning, kind=kind) for mark, (meaning, kind) in _UNTOLD.items()}
    for mark, meaning in _LEGEND.findall(rules + "\n"):
        kind = next((kind for words, kind in _KINDS if words in meaning.lower()), "other")
        legend[mark] = Mark(meaning=meaning.strip(), kind=kind)
    return legend


def split_boards(text: str, legend: Mapping[str, Mark]) -> list[Json]:
    """A text in parts: `{"text": ...}`, and `{"board": [["_", "P"], ...]}` for grids of marks that the legend knows."""
    if len(legend) <= len(_UNTOLD):
        return [{"text": text}]
    parts: list[Json] = []
    for width, lines in _runs(text, legend):
        if width:
            parts.append({"board": [list(line.split(" ")) for line in lines]})
        elif parts and isinstance(parts[-1], dict) and "text" in parts[-1]:
            parts[-1] = {"text": "\n".join([str(parts[-1]["text"]), *lines])}
        else:
            parts.append({"text": "\n".join(lines)})
    return parts


def _runs(text: str, legend: Mapping[str, Mark]) -> Iterator[tuple[int, list[str]]]:
    """Runs of lines of as many marks each; 0 for lines that are no board's."""
    for width, found in groupby(text.split("\n"), lambda line: _width(line, legend)):
        lines = list(found)
        yield (width if len(lines) >= _LEAST else 0), lines


def _width(line: str, legend: Mapping[str, Mark]) -> int:
    cells = line.split(" ")
    return len(cells) if len(cells) >= _LEAST and all(cell in legend for cell in cells) else 0
