"""Reads a Google-style docstring: what the model reads about a tool and about each of its parameters."""

import inspect
import re
from dataclasses import dataclass
from itertools import pairwise

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Examples?|Notes?):\s*$")
_ARGUMENTS = ("Args", "Arguments", "Parameters")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """`Docstring(description="Searches the web.", parameters={"query": "What to look for."})`."""

    description: str
    """Everything before the first section."""
    parameters: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Splits a docstring into its description and the entries of its `Args:` section."""
    lines = inspect.cleandoc(text).splitlines()
    starts = [i for i, line in enumerate(lines) if _SECTION.match(line)]
    bounds = [*starts, len(lines)]
    parameters: dict[str, str] = {}
    for start, end in pairwise(bounds):
        if lines[start].split(":")[0] in _ARGUMENTS:
            parameters |= _read_entries(lines[start + 1 : end])
    return Docstring(description="\n".join(lines[: bounds[0]]).strip(), parameters=parameters)


def _read_entries(lines: list[str]) -> dict[str, str]:
    """An entry begins at the section's own indent; anything deeper continues the entry above it."""
    entries: dict[str, str] = {}
    name = ""
    indent = min((_indent(line) for line in lines if line.strip()), default=0)
    for line in lines:
        entry = _ENTRY.match(line.strip()) if _indent(line) == indent else None
        if entry:
            name, words = entry[1], entry[2]
            entries[name] = words
        elif name and line.strip():
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
