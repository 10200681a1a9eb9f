"""Suggests the nearest known word, so that an error message can correct a typo."""

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'search'?)"` when something known is close to `word`, else nothing."""
    near = nearest(word, known, cutoff=0.5)
    return f" (did you mean '{near}'?)" if near else ""


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant: the fewest slips of the keyboard away, and then the most alike.

    `nearest("gpro", ["gspo", "grpo"])` is `grpo`, two letters in the wrong order; words less alike than `cutoff` are
    not considered.
    """
    plain = {one: one.lower().replace("-", "_") for one in known}
    given = word.lower().replace("-", "_")
    alike = difflib.get_close_matches(given, sorted(set(plain.values())), n=8, cutoff=cutoff)
    ranked = sorted(alike, key=lambda one: count_slips(given, one))
    return next((one for one, text in plain.items() if ranked and text == ranked[0]), None)


def count_slips(one: str, other: str) -> int:
    """Letters left out, added, replaced, or two swapped (optimal string alignment): 1 between `gpro` and `grpo`."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, 1):
            slips = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            swapped = i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted
            row.append(min(slips, last[j - 2] + 1) if swapped else slips)
    return row[-1]
