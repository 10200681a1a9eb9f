"""Evidence for questions that go from one passage to another, in the passages' own words, where the answer is known.

Invariant: the first passage names the subject of the second in a sentence about its own; and the answer is that
subject, or stands in a sentence about it that shares a word with the question.
"""

import re
from collections.abc import Sequence
from itertools import permutations

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.facts import Facts
from turnwise.envs.qa.writer.topics import Topic, read_topic
from turnwise.rewards import mentions, normalise_answer

_MOST_WORDS = 30
_COMMON = re.compile(
    r"(?:a|an|the|of|in|on|at|to|for|from|by|with|and|or|is|was|are|were|be|been|has|had|have|that|which|who|whom|"
    r"whose|what|when|where|how|many|much|did|do|does|it|its|he|she|his|her|they|their|as|this|also|name|named|"
    r"called|known|first|one|two|year|city|state|country)$"
)
_STEM = 5
"""Letters by which words are compared: `founded` and `founder` are the same."""


def trace(question: Question, gold: Sequence[Facts]) -> str:
    """`"Starship Command is a game published by Acornsoft. Acornsoft was founded in 1980."`, or nothing."""
    topics = [topic for one in gold if (topic := read_topic(one)) is not None]
    if len(gold) != 2 or len(topics) != 2 or normalise_answer(question.answers[0]) in ("yes", "no"):
        return ""
    for first, second in permutations(topics):
        if first.name == second.name or not mentions(question.text, first.name):
            continue
        led = _lead_to(second.name, first)
        if led and _is_answer(question, second) and not mentions(question.text, second.name):
            verb, article, _ = second.clauses[0].split(maxsplit=2)
            known = _sentence(second.name, f"{verb} {article} {second.noun}")
            return f"{led} {known}" if second.noun else led
        told = _find_answer(question, first, second) if led else ""
        if told:
            return f"{led} {told}"
    return ""


def _lead_to(name: str, topic: Topic) -> str:
    """The first sentence about a topic with the name in it, up to the name."""
    for clause in topic.clauses:
        found = re.search(rf"(?<!\w){re.escape(name)}(?!\w| [A-Z])", clause)
        if found:
            return _sentence(topic.name, clause[: found.end()])
    return ""


def _is_answer(question: Question, topic: Topic) -> bool:
    names = {normalise_answer(name) for name in (topic.name, topic.title)}
    return any(normalise_answer(answer) in names for answer in question.answers)


def _find_answer(question: Question, first: Topic, topic: Topic) -> str:
    """The sentence about a topic that has the answer and most words of the question, up to the answer."""
    known = _words(question.text) - _words(f"{first.name} {topic.name}")
    best: tuple[int, str] = (0, "")
    for clause in topic.clauses:
        for answer in question.answers:
            found = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", clause)
            told = _sentence(topic.name, clause[: found.end()]) if found else ""
            shared = len(known & (_words(clause) - _words(answer)))
            if told and shared > best[0]:
                best = shared, told
    return best[1]


def _sentence(name: str, words: str) -> str:
    told = f"{name} {words.strip()}"
    return f"{told.rstrip('.')}." if len(told.split()) <= _MOST_WORDS else ""


def _words(text: str) -> set[str]:
    return {word[:_STEM] for word in normalise_answer(text).split() if not _COMMON.match(word)}
