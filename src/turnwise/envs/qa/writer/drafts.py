"""Drafts of written questions: put together alike by every kind, drawn from several sources by weight, each asked once.

Invariant: no two questions have the same text, or the same passages and answer.
"""

import random
from collections.abc import Iterator, Sequence

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.held_out import HeldOut
from turnwise.rewards import normalise_answer
from turnwise.tools.search.retrieval import Passage

SOURCE = "written"
"""The `source` of written questions, by which results are grouped."""
_MOST_FAILURES = 1000
"""Failed draws in a row after which the sources have run out, and drafts that were asked before."""


def draft(text: str, answers: Sequence[str], supporting: Sequence[Passage], *, kind: str, evidence: str) -> Question:
    """A question without an id; answers that say the same in other words are kept, empty ones are not."""
    return Question(
        text=text,
        answers=tuple(dict.fromkeys(answer for answer in answers if normalise_answer(answer))),
        supporting_titles=tuple(passage.title for passage in supporting),
        supporting_ids=tuple(passage.id for passage in supporting),
        hops=len(supporting),
        source=SOURCE,
        type=kind,
        evidence=evidence,
    )


class Unasked:
    """Lets those drafts through that may be asked: nothing of a held-out question, and nothing again in other words."""

    def __init__(self, avoid: Sequence[Question]) -> None:
        self._held_out = HeldOut(avoid)
        self._texts = {normalise_answer(question.text) for question in avoid}
        self._facts: set[tuple[frozenset[str], str]] = set()

    def of(self, drafts: Iterator[Question]) -> Iterator[Question]:
        """Until too many in a row may not be asked: a small corpus runs out."""
        repeated = 0
        for question in drafts:
            repeated = 0 if self._take(question) else repeated + 1
            if not repeated:
                yield question
            if repeated > _MOST_FAILURES:
                return

    def _take(self, question: Question) -> bool:
        text = normalise_answer(question.text)
        fact = frozenset(question.supporting_ids), normalise_answer(question.answers[0])
        if text in self._texts or fact in self._facts:
            return False
        if self._held_out.overlap(question.supporting_ids, question.supporting_titles):
            return False
        self._texts.add(text)
        self._facts.add(fact)
        return True


def mix(sources: Sequence[tuple[float, Iterator[Question | None]]], rng: random.Random) -> Iterator[Question]:
    """Draws from endless sources by weight; None is a failed draw, and many in a row end it."""
    weights = [weight for weight, _ in sources]
    failures = 0
    while failures < _MOST_FAILURES:
        (source,) = rng.choices([source for _, source in sources], weights)
        drawn = next(source, None)
        failures = failures + 1 if drawn is None else 0
        if drawn is not None:
            yield drawn


def with_article(noun: str) -> str:
    """`with_article("Irish band") == "an Irish band"`."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"
