"""Drafts of written questions: put together alike by every kind, and drawn from several sources by weight."""

import random
from collections.abc import Iterator, Sequence

from turnwise.envs.qa.formats import Question
from turnwise.rewards import normalise_answer
from turnwise.tools.search.retrieval import Passage

SOURCE = "written"
"""The `source` of written questions, by which results are grouped."""
_MOST_FAILURES = 1000
"""Failed draws in a row after which the sources have run out."""


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
