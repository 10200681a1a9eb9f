"""What searching is worth: the supporting passages of a question, each counted the first time a search returns it.

Invariant: a passage counts once in an episode, however often and in however many words it is searched for.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from turnwise.tools.search.retrieval import Passage
from turnwise.types import Json, Task

FOUND_GOLD = "found_gold"
"""The channel that pays for supporting passages."""
SEARCH_COST = "search_cost"
"""The channel that charges for searches."""


@dataclass(slots=True, kw_only=True)
class GoldPassages:
    """The supporting passages of one question, and those that searches of this episode have returned so far."""

    wanted: tuple[str, ...]
    """Their ids, or their titles as `normalise_title` writes them; in the question's order, each once."""
    by_id: bool
    found: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, task: Task, *, by_id: bool) -> "GoldPassages":
        """Those of the task's `supporting_ids`, if they are asked for and it has any, else of its `supporting_titles`.

        Titles are the lenient way: several passages may have one, and the first of them settles it.
        """
        ids, titles = texts(task.data.get("supporting_ids")), texts(task.data.get("supporting_titles"))
        if ids and (by_id or not titles):
            return cls(wanted=tuple(dict.fromkeys(ids)), by_id=True)
        return cls(wanted=tuple(dict.fromkeys(map(normalise_title, titles))), by_id=False)

    def name(self, passage: Passage) -> str:
        """What a passage is known by here: its id or its title."""
        return passage.id if self.by_id else normalise_title(passage.title)

    def take(self, passages: Iterable[Passage]) -> int:
        """How many supporting passages are among these that no search had returned before."""
        new = {self.name(passage) for passage in passages}.intersection(self.wanted) - self.found
        self.found |= new
        return len(new)

    @property
    def recall(self) -> float | None:
        """The share that was found; None where the question names no passage."""
        return len(self.found) / len(self.wanted) if self.wanted else None


def normalise_title(title: str) -> str:
    """Case, spacing and the way accents are encoded do not tell titles apart: `"Gene  Saks"` is `"gene saks"`."""
    return " ".join(unicodedata.normalize("NFKC", title).casefold().split())


def texts(value: Json) -> Sequence[str]:
    """The texts of a list in a task's data; none where it has no such list."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else []
