"""Suggests the nearest known word, so that an error message can correct a typo."""

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'search'?)"` when something known is close to `word`, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""
