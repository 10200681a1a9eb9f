"""Evidence for questions that no facts explain: the sentence of each supporting passage that leads on to the answer.

Invariant: a quote is a run of words of a supporting passage, early enough in it to be shown by a search; there is none
where the answer itself stands in no sentence that can be quoted, yes and no aside.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from turnwise.envs.qa.expert import bare_title, mentions
from turnwise.envs.qa.formats import Question
from turnwise.rewards import normalise_answer
from turnwise.tools.search.retrieval import Passage

_SHOWN_CHARS: Final = 600
_MOST_WORDS: Final = 24
_MOST_QUOTES: Final = 3
_NO_END: Final = "".join(rf"(?<!{word}\.)" for word in (r"\b[A-Z]", "Dr", "Mr", "Mrs", "St", "Jr", "Inc", "vs"))
"""An initial or a title before a name ends no sentence."""
_SENTENCE: Final = re.compile(rf"(?<=[.!?]){_NO_END}\s+(?=[A-Z\"'(])")
_YES_NO: Final = ("yes", "no")


def quote(question: Question, passages: Mapping[str, Passage]) -> str:
    """`"Uskyld was directed by Ada Berg. Ada Berg (1901 – 1970) was born in Oslo."`; empty where nothing can be quoted.

    The passage with the answer comes last; of each other passage, the sentence that names a further one is quoted, or
    else the one most like the question.
    """
    gold = [passages[name] for name in question.supporting_ids if name in passages]
    if not gold or len(gold) != len(question.supporting_ids) or len(gold) > _MOST_QUOTES:
        return ""
    last: Passage | None = None
    said = ""
    if normalise_answer(question.answers[0]) not in _YES_NO:
        found = [
            (_likeness(sentence, question.text), -place, answer, sentence)
            for place, passage in enumerate(gold)
            for sentence in _sentences(passage)
            for answer in question.answers
            if mentions(sentence, answer)
        ]
        if not found:
            return ""
        _, place, answer, sentence = max(found)
        last, said = gold[-place], _cut(sentence, answer)
    others = [_lead(passage, gold, question.text) for passage in gold if passage is not last]
    return " ".join(_end(text) for text in (*others, said) if text)


def _sentences(passage: Passage) -> list[str]:
    text = passage.text
    if len(text) > _SHOWN_CHARS:
        text = text[:_SHOWN_CHARS].rpartition(" ")[0]
    return [part.strip() for part in _SENTENCE.split(text) if part.strip()]


def _likeness(sentence: str, question: str) -> int:
    """How many words of the question the sentence has."""
    return len(set(normalise_answer(sentence).split()) & set(normalise_answer(question).split()))


def _lead(passage: Passage, gold: Sequence[Passage], question: str) -> str:
    """The sentence that names another supporting passage, or else the one most like the question."""
    names = [bare_title(other.title) for other in gold if other is not passage]
    sentences = _sentences(passage)
    for sentence in sentences:
        for name in names:
            if mentions(sentence, name):
                return _cut(sentence, name)
    best = max(sentences, key=lambda sentence: _likeness(sentence, question), default="")
    return _cut(best, bare_title(passage.title))


def _cut(sentence: str, name: str) -> str:
    """At most so many words of the sentence, the name among them where it stands there as written."""
    words = sentence.split()
    if len(words) <= _MOST_WORDS:
        return sentence
    before = sentence.casefold().find(name.casefold())
    end = len(sentence[: before + len(name)].split()) if before >= 0 else 0
    start = max(0, min(end - _MOST_WORDS // 2, len(words) - _MOST_WORDS))
    return " ".join(words[start : start + _MOST_WORDS])


def _end(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text.rstrip(',;:')}."
