"""What an expert searches for, knowing which passages support the answer but not how they are found.

Invariant: every supporting title is searched for once, and before its turn comes it has been read somewhere, in the
question or in a passage searched for before, wherever an order exists in which that is so.
"""

import re
from collections.abc import Callable, Sequence

from turnwise.rewards import normalise_answer
from turnwise.rewards.retrieval import normalise_title

_QUALIFIER = re.compile(r"\s*\([^()]*\)$")


def plan_searches(question: str, titles: Sequence[str], read: Callable[[str], str]) -> list[str]:
    """The titles in an order in which they could be found; the question itself where there are none.

    Sources list supporting passages in any order, and a demonstration that searches for a name which nothing has
    mentioned yet would teach guessing. `read` gives the text under a title, empty where it is not known.
    """
    spellings: dict[str, str] = {}
    for title in titles:
        spellings.setdefault(normalise_title(title), title)
    left, known = list(spellings.values()), question
    plan: list[str] = []
    while left:
        title = next((title for title in left if mentions(known, _QUALIFIER.sub("", title))), left[0])
        left.remove(title)
        plan.append(_as_known(title, known))
        known = f"{known}\n{read(title)}"
    return plan or [question]


def _as_known(title: str, known: str) -> str:
    """The title without a qualifier such as "(director)" where only the rest has been read: it would be a guess."""
    bare = _QUALIFIER.sub("", title)
    return bare if mentions(known, bare) and not mentions(known, title) else title


def mentions(text: str, name: str) -> bool:
    """Whether the name stands in the text as whole words, once both are normalised as answers are."""
    wanted = normalise_answer(name)
    return bool(wanted) and f" {wanted} " in f" {normalise_answer(text)} "
