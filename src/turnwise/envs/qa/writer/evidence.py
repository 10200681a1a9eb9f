"""Evidence for questions that the writer did not write, in the templates' phrases, where passages support the answer.

Invariant: evidence is given only where what is read of the supporting passages leads to the gold answer. So the share
of explained questions measures how well passages are read, and the share of contradicted comparisons how badly.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Literal, TypeAlias

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.asking import Form, find_subjects, name_attribute, name_kinship, name_relation
from turnwise.envs.qa.writer.facts import FactBook, Facts
from turnwise.envs.qa.writer.reading import read_life, read_nation, read_year, tell_nation
from turnwise.envs.qa.writer.templates import LIVES, LONGER, conclude_same
from turnwise.rewards import mentions, normalise_answer

Verdict = Literal["explained", "contradicted", "unknown"]
Side: TypeAlias = tuple[Facts, Facts]
"""What a question compares, and who has the number or nation: a film and its director, or one subject twice."""

_NUMBERS = {
    "age": ("lived longer",),
    "born": ("born", "older", "younger"),
    "died": ("died",),
    "year": ("came out", "released", "established", "founded"),
}
_LAST = ("later", "younger", "recently", "longer")
_FIRST = ("first", "earlier", "older")
_TOLD = {"age": "lived {} years", "born": "was born in {}", "died": "died in {}", "year": "came out in {}"}
_BRIDGED = {"born": "born in {}", "died": "who died in {}"}


def explain(question: Question, book: FactBook) -> tuple[Verdict, str]:
    """`("explained", "Hanna's War was directed by Menahem Golan. Menahem Golan died on August 8, 2014.")`."""
    gold = [book.by_id[name] for name in question.supporting_ids if name in book.by_id]
    if not gold or len(gold) != len(question.supporting_ids):
        return "unknown", ""
    if question.type not in ("comparison", "bridge_comparison"):
        evidence = _compose(question, gold)
        return ("explained", evidence) if evidence else ("unknown", "")
    found = list(_compare(question, gold))
    wanted = {normalise_answer(answer) for answer in question.answers}
    for answers, evidence in found:
        if any(normalise_answer(answer) in wanted for answer in answers):
            return "explained", evidence
    return ("contradicted" if found else "unknown"), ""


def _compose(question: Question, gold: Sequence[Facts]) -> str:
    """Both facts of a question that goes through one person to another passage; empty where one is not stated."""
    subjects = find_subjects(question.text, gold)
    if len(gold) != 2 or len(subjects) != 1:
        return ""
    (subject,) = subjects
    (person,) = (one for one in gold if one is not subject)
    if not (_names(subject, person) or _names(person, subject)):
        return ""
    if question.type == "inference":
        return _infer(question, subject, person)
    relation, attribute = name_relation(question.text, subject), name_attribute(question.text, subject)
    if relation is None or attribute is None:
        return ""
    told = _tell(question, person, attribute)
    return f"{relation.tell.format(subject.name, person.name)} {told}" if told else ""


def _tell(question: Question, person: Facts, attribute: Form) -> str:
    """The fact that answers, where the passage states it."""
    answer = _stated(question, person)
    if attribute.name == "nationality":
        known = (tell_nation(person, wanted) for wanted in question.answers)
        return next(filter(None, known), f"{person.name} is from {answer}." if answer else "")
    return "" if answer is None else attribute.tell.format(person.name, answer)


def _infer(question: Question, subject: Facts, person: Facts) -> str:
    facts, answer = name_kinship(question.text), _stated(question, person)
    if facts is None or answer is None:
        return ""
    first, second = facts
    return f"{first.format(subject.name, person.name)} {second.format(person.name, answer)}"


def _stated(question: Question, person: Facts) -> str | None:
    """The answer as the passage has it, the gold one rather than an alias."""
    return next((answer for answer in question.answers if mentions(person.passage.text, answer)), None)


def _names(one: Facts, other: Facts) -> bool:
    """Whether a passage names the subject of another, by the last name at least."""
    text, name = one.passage.text, other.name.split(",")[0]
    return mentions(text, name) or (len(last := name.split()[-1]) > 2 and mentions(text, last))


def _compare(question: Question, gold: Sequence[Facts]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The answers that what is read of both sides leads to, with the evidence."""
    subjects = find_subjects(question.text, gold)
    bridged = question.type == "bridge_comparison"
    sides = _bridge(subjects, gold) if bridged else [(one, one) for one in subjects]
    if len(sides) != 2:
        return
    words = question.text.lower()
    for one in subjects:
        words = words.replace(one.passage.title.lower(), "#").replace(one.name.lower(), "#")
    if any(word in words for word in ("same country", "same nationality")):
        yield from _same(sides, bridged)
        return
    which = next((name for name, asked in _NUMBERS.items() if any(word in words for word in asked)), None)
    if which is None or not any(word in words for word in (*_FIRST, *_LAST)):
        return
    numbers = [number for _, person in sides if (number := _number(person, which)) is not None]
    if len(numbers) < 2 or numbers[0] == numbers[1]:
        return
    chosen = max if any(word in words for word in _LAST) else min
    won = sides[numbers.index(chosen(numbers))][0]
    told = [_tell_number(side, which, number) for side, number in zip(sides, numbers, strict=True)]
    order = LONGER if which == "age" else LIVES[0]
    yield (won.name, won.passage.title), " ".join([*told, order.conclude(numbers)])


def _bridge(films: Sequence[Facts], gold: Sequence[Facts]) -> list[Side]:
    """Each film with its director, where only one way of pairing them agrees with what the passages name."""
    people = [one for one in gold if one not in films]
    if len(films) != len(people):
        return []
    pairings = [list(zip(films, order, strict=True)) for order in permutations(people)]
    named = [sides for sides in pairings if all(_names(film, person) for film, person in sides)]
    return named[0] if len(named) == 1 else []


def _number(one: Facts, which: str) -> int | None:
    if which == "year":
        return read_year(one)
    born, died = read_life(one)
    if which == "age":
        return None if born is None or died is None else died.year - born.year
    date = born if which == "born" else died
    return None if date is None else date.year


def _tell_number(side: Side, which: str, number: int) -> str:
    film, person = side
    if film is person:
        return f"{person.name} {_TOLD[which].format(number)}."
    return f"{film.name} was directed by {person.name}, {_BRIDGED[which].format(number)}."


def _same(sides: Sequence[Side], bridged: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    nations = [nation for _, person in sides if (nation := read_nation(person)) is not None]
    if len(nations) < 2:
        return
    shown = [word for word, _ in nations]
    told = [
        f"{film.name} was directed by {person.name}, who is {word}."
        if bridged
        else f"{person.name} is {'in ' if person.kind == 'place' else ''}{word}."
        for (film, person), word in zip(sides, shown, strict=True)
    ]
    alike = nations[0][1] == nations[1][1]
    yield ("yes" if alike else "no",), " ".join([*told, conclude_same(shown, alike)])
