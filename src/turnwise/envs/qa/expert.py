"""What an expert searches for, knowing which passages support the answer but not how they are found.

Invariant: it searches for a supporting title only once the title has stood in the question or in a passage it read;
where none has, for the question itself; and it guesses a title only where that showed none either.
"""

import re
from collections.abc import Collection, Sequence

from turnwise.rewards import normalise_answer
from turnwise.rewards.retrieval import normalise_title

_QUALIFIER = re.compile(r"\s*\([^()]*\)$")


def next_search(
    question: str, titles: Sequence[str], *, read: str, found: Collection[str], searched: Collection[str]
) -> str | None:
    """The next query, after the queries `searched` brought the passages titled `found`, whose text is `read`.

    None when every supporting passage is found or was searched for. Sources list supporting passages in any order, and
    a demonstration that searches for a name which nothing has mentioned would teach guessing.
    """
    if not titles:
        return None if question in searched else question
    have = {normalise_title(title) for title in found}
    left = [title for title in titles if normalise_title(title) not in have and not _was_searched(title, searched)]
    known = f"{question}\n{read}"
    for title in left:
        if mentions(known, bare_title(title)):
            return _as_known(title, known)
    if not left:
        return None
    return left[0] if question in searched else question


def _was_searched(title: str, searched: Collection[str]) -> bool:
    return title in searched or bare_title(title) in searched


def _as_known(title: str, known: str) -> str:
    """The title without a qualifier such as "(director)" where only the rest has been read: it would be a guess."""
    bare = bare_title(title)
    return bare if mentions(known, bare) and not mentions(known, title) else title


def bare_title(title: str) -> str:
    """`bare_title("Lumen (firm)") == "Lumen"`."""
    return _QUALIFIER.sub("", title)


def mentions(text: str, name: str) -> bool:
    """Whether the name stands in the text as whole words, once both are normalised as answers are."""
    wanted = normalise_answer(name)
    return bool(wanted) and f" {wanted} " in f" {normalise_answer(text)} "
