"""What new questions must not go by: the supporting passages of held-out ones.

Invariant: passages are known by their ids and by their titles, since a corpus may have the same passage twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from turnwise.envs.qa.formats import Question
from turnwise.rewards.retrieval import normalise_title


class HeldOut:
    """The supporting passages of questions to avoid."""

    def __init__(self, avoid: Iterable[Question]) -> None:
        self._by_passage: dict[str, set[frozenset[str]]] = defaultdict(set)
        for question in avoid:
            for names in _both(question.supporting_ids, question.supporting_titles):
                for name in names:
                    self._by_passage[name].add(names)

    def overlap(self, ids: Sequence[str], titles: Sequence[str]) -> bool:
        """Whether a question by these passages goes by all of a held-out one's, or by several of them and no other."""
        for names in _both(ids, titles):
            near = {held_out for name in names for held_out in self._by_passage.get(name, ())}
            if any(held_out <= names or (len(names) > 1 and names <= held_out) for held_out in near):
                return True
        return False


def _both(ids: Sequence[str], titles: Sequence[str]) -> list[frozenset[str]]:
    """Passages by their ids, and by their titles where these tell them apart."""
    by_title = frozenset(f"title {normalise_title(title)}" for title in titles)
    return [frozenset(f"id {name}" for name in ids), *([by_title] if len(by_title) == len(titles) else [])]
