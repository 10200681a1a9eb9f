"""What an expert searches for, knowing which passages support the answer but not how they are found.

Invariant: it searches for a supporting title only once the title has stood in the question or in a passage it read.
Where none has, it follows a name that it has read, or searches for the question itself; and it guesses a title only
where neither showed a supporting passage.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from turnwise.envs.qa.nations import DEMONYMS
from turnwise.rewards import mentions
from turnwise.rewards.retrieval import normalise_title

_QUALIFIER = re.compile(r"\s*\([^()]*\)$")
_CAPITALISED = r"[A-ZÀ-ÖØ-ÞĀ-Ž0-9](?:[\w'’&/-]|(?<=\b[A-Z])\.)*"
_NAME = re.compile(rf"\b{_CAPITALISED}(?: (?:(?:of|the|de|la|du|di|von|van|and|for|in) ){{0,2}}{_CAPITALISED})*")
_MOST_WORDS = 3
"""Of the question, beside a name, in one query."""
_COMMON = {
    "a", "an", "and", "are", "as", "at", "be", "been", "by", "did", "do", "does", "for", "from", "had", "has",
    "have", "he", "her", "his", "how", "if", "in", "is", "it", "its", "of", "on", "or", "she", "that", "the",
    "their", "they", "this", "to", "was", "were", "what", "when", "where", "which", "who", "whom", "whose", "why",
    "with",
}  # fmt: skip


def next_search(
    question: str,
    titles: Sequence[str],
    *,
    read: str,
    found: Collection[str],
    searched: Collection[str],
    follow: Callable[[], str | None] = lambda: None,
) -> str | None:
    """The next query, after the queries `searched` brought the passages titled `found`, whose text is `read`.

    None when every supporting passage is found or was searched for. Sources list supporting passages in any order, and
    a demonstration that searches for a name which nothing has mentioned would teach guessing. So where none of their
    titles has been read, `follow` gives a query that leads on from what has been read, if there is one.
    """
    if not titles:
        return None if question in searched else question
    have = {normalise_title(title) for title in found}
    left = [title for title in titles if normalise_title(title) not in have and not _was_searched(title, searched)]
    known = f"{question}\n{read}"
    for title in left:
        if mentions(known, bare_title(title)):
            return _as_known(title, known)
    if searched and (query := follow()) is not None:
        return query
    if not left:
        return None
    return left[0] if question in searched else question


def queries_from(question: str, read: str, wanted: str) -> Iterator[str]:
    """Queries that may lead from what has been read to a passage, by names that both have; the plainest first.

    Of `"Who leads the party of Al Ford?"`, `"Al Ford is of the Farm Party."` and `"Eva Lund leads the Farm Party."`:
    `"Farm Party"` and then `"Farm Party leads"`, a name by itself, and with words of the question that the passage has.
    """
    names = [name for name in _names(f"{question}\n{read}") if mentions(wanted, name)]
    yield from names
    asked = [word for word in re.findall(r"[\w'’-]+", question) if _tells(word) and mentions(wanted, word)]
    for name in names:
        words = [word for word in asked if not mentions(name, word)]
        yield from (" ".join([name, *words[:count]]) for count in range(1, min(len(words), _MOST_WORDS) + 1))


def _names(text: str) -> list[str]:
    """In order, each once: `_names("The French Ada Lund won.") == ["French Ada Lund", "Ada Lund"]`."""
    names: dict[str, None] = {}
    for match in _NAME.finditer(text):
        words = match[0].rstrip("'’&-").split()
        while words and words[0].lower() in _COMMON:
            del words[0]
        if words:
            names[" ".join(words)] = None
            names[" ".join(words[words[0] in DEMONYMS :])] = None
    return [name for name in names if _tells(name) and name not in DEMONYMS and not name.isdigit()]


def _tells(word: str) -> bool:
    return len(word) > 2 and word.lower() not in _COMMON


def _was_searched(title: str, searched: Collection[str]) -> bool:
    return title in searched or bare_title(title) in searched


def _as_known(title: str, known: str) -> str:
    """The title without a qualifier such as "(director)" where only the rest has been read: it would be a guess."""
    bare = bare_title(title)
    return bare if mentions(known, bare) and not mentions(known, title) else title


def bare_title(title: str) -> str:
    """`bare_title("Lumen (firm)") == "Lumen"`."""
    return _QUALIFIER.sub("", title)
