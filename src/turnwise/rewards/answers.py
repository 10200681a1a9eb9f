"""Compares a predicted answer with the gold ones, as SQuAD does; knows nothing of what is paid for it."""

import functools
import math
import re
import string
from collections import Counter
from collections.abc import Sequence

_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_KEPT = 1024
"""Texts whose normal form is kept: gold answers, and what a group's members say alike."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def final_answer(text: str) -> str | None:
    """What stands in the last `<answer>...</answer>`, trimmed; None without one."""
    found = _ANSWER.findall(text)
    return str(found[-1]).strip() if found else None


def is_answer(gold: object) -> bool:
    """Whether it can be a gold answer: a text or a number; NaN is how a table writes that there is none."""
    return isinstance(gold, str | int) or (isinstance(gold, float) and not math.isnan(gold))


def write_answer(gold: object) -> str:
    """A gold answer as text: `"42"` for 42.0, which a table makes of 42 where its column has gaps.

    Without punctuation, 42.0 would read as 420.
    """
    return str(int(gold)) if isinstance(gold, float) and gold.is_integer() else str(gold)


@functools.lru_cache(maxsize=_KEPT)
def normalise_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces: `"The  Beatles!"` is `"beatles"`."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", bare).split())


def mentions(text: str, name: str) -> bool:
    """Whether the name stands in the text as whole words, once both are normalised as answers are."""
    wanted = normalise_answer(name)
    return bool(wanted) and f" {wanted} " in f" {normalise_answer(text)} "


def exact_match(prediction: str | None, answers: str | Sequence[str]) -> bool:
    """Whether the prediction equals any gold answer once both are normalised; no prediction never does."""
    if prediction is None:
        return False
    return normalise_answer(prediction) in {normalise_answer(answer) for answer in _listed(answers)}


def f1(prediction: str | None, answers: str | Sequence[str]) -> float:
    """The best overlap of words with any gold answer, 2PR / (P + R); no prediction scores 0."""
    if prediction is None:
        return 0.0
    return max((_overlap(prediction, answer) for answer in _listed(answers)), default=0.0)


def _overlap(prediction: str, answer: str) -> float:
    predicted, gold = normalise_answer(prediction).split(), normalise_answer(answer).split()
    if not predicted or not gold:
        return float(predicted == gold)
    shared = (Counter(predicted) & Counter(gold)).total()
    return 2 * shared / (len(predicted) + len(gold))


def _listed(answers: str | Sequence[str]) -> Sequence[str]:
    # A string is a sequence of its letters, each of which would pass for a gold answer.
    return (answers,) if isinstance(answers, str) else answers
