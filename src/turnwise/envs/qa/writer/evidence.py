"""Evidence for questions that the writer did not write, in the templates' phrases, where facts support the answer.

Invariant: evidence is given only where the facts of the supporting passages lead to the gold answer. So the share of
explained questions measures how well facts are read, and the share of contradicted ones how badly.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.facts import FactBook, Facts
from turnwise.envs.qa.writer.questions import find_links_of
from turnwise.envs.qa.writer.templates import (
    ATTRIBUTES,
    INFERENCES,
    PEOPLE,
    Attribute,
    Relation,
    conclude_same,
)
from turnwise.rewards import normalise_answer

Verdict = Literal["explained", "contradicted", "unknown"]

_NUMBERS = {"born": ("born", "older", "younger"), "died": ("died",), "year": ("came out", "released")}
_LAST = ("later", "younger", "recently")


def explain(question: Question, book: FactBook) -> tuple[Verdict, str]:
    """`("explained", "Hanna's War was directed by Menahem Golan. Menahem Golan died on August 8, 2014.")`."""
    gold = [book.by_id[name] for name in question.supporting_ids if name in book.by_id]
    if not gold or len(gold) != len(question.supporting_ids):
        return "unknown", ""
    compares = question.type in ("comparison", "bridge_comparison")
    found = list(_compare(question, gold, book) if compares else _compose(question, gold, book))
    wanted = {normalise_answer(answer) for answer in question.answers}
    for answers, evidence in found:
        if any(normalise_answer(answer) in wanted for answer in answers):
            return "explained", evidence
    return ("contradicted" if found else "unknown"), ""


def _compose(question: Question, gold: Sequence[Facts], book: FactBook) -> Iterator[tuple[tuple[str, ...], str]]:
    for subject, relation, person in find_links_of(gold, book):
        if person not in gold:
            continue
        for name, attribute in ATTRIBUTES.items():
            if _asks(question, name, relation) and (answers := attribute.read(person)):
                yield answers, _tell(subject, relation, person, attribute, _best(answers, question))


def _asks(question: Question, name: str, relation: Relation) -> bool:
    text = question.text.lower()
    if question.type == "inference":
        return name in ("father", "mother") and _inferred(text, relation.name, name)
    match name:
        case "birth_place":
            return ("where" in text and "born" in text) or "place of birth" in text
        case "death_place":
            return ("where" in text and " die" in text) or "place of death" in text
        case "born":
            return ("when" in text and ("born" in text or "birthday" in text)) or "date of birth" in text
        case "died":
            return ("when did" in text and " die" in text) or "date of death" in text
        case "nationality":
            return "nationality" in text or "which country" in text
        case _:
            return f"who is the {name} of" in text


def _inferred(text: str, relation: str, further: str) -> bool:
    return INFERENCES.get((relation, further), "?") in text


def _best(answers: Sequence[str], question: Question) -> str:
    """The spelling that the question's own answer has, where one of them does."""
    wanted = {normalise_answer(answer) for answer in question.answers}
    return next((answer for answer in answers if normalise_answer(answer) in wanted), answers[0])


def _tell(subject: Facts, relation: Relation, person: Facts, attribute: Attribute, answer: str) -> str:
    return f"{relation.tell.format(subject.name, person.name)} {attribute.tell.format(person.name, answer)}"


def _compare(question: Question, gold: Sequence[Facts], book: FactBook) -> Iterator[tuple[tuple[str, ...], str]]:
    """Both sides of a comparison, in the order of the question."""
    sides: list[tuple[Facts, Facts]]
    if question.type == "bridge_comparison":
        links = [(film, person) for film, relation, person in find_links_of(gold, book) if relation.name == "director"]
        sides = [(film, person) for film, person in links if person in gold]
    else:
        sides = [(one, one) for one in gold]
    text = question.text.lower()
    sides.sort(key=lambda side: text.find(side[0].passage.title.lower()))
    if len(sides) != 2:
        return
    bridged = question.type == "bridge_comparison"
    if any(word in text for word in ("country", "nationality")):
        yield from _same(sides, bridged)
        return
    which = next((name for name, words in _NUMBERS.items() if any(word in text for word in words)), None)
    if which is None:
        return
    numbers = [number for _, person in sides if (number := _number(person, which)) is not None]
    if len(numbers) < 2 or numbers[0] == numbers[1]:
        return
    chosen = max if any(word in text for word in _LAST) else min
    won = sides[numbers.index(chosen(numbers))][0]
    told = [_tell_number(side, which, number, bridged) for side, number in zip(sides, numbers, strict=True)]
    yield (won.name, won.passage.title), " ".join([*told, PEOPLE[0].conclude(numbers)])


def _number(one: Facts, which: str) -> int | None:
    if which == "year":
        return one.year
    date = one.born if which == "born" else one.died
    return None if date is None else date.year


def _tell_number(side: tuple[Facts, Facts], which: str, number: int, bridged: bool) -> str:
    film, person = side
    if bridged:
        said = f"born in {number}" if which == "born" else f"who died in {number}"
        return f"{film.name} was directed by {person.name}, {said}."
    verb = {"born": "was born", "died": "died", "year": "came out"}[which]
    return f"{person.name} {verb} in {number}."


def _same(sides: Sequence[tuple[Facts, Facts]], bridged: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    people = [person for _, person in sides]
    groups = [person.state if person.kind == "place" else person.nation for person in people]
    if None in groups:
        return
    shown = [person.country if person.kind == "place" else person.nationality for person in people]
    told = [
        f"{film.name} was directed by {person.name}, who is {word}."
        if bridged
        else f"{person.name} is {'in ' if person.kind == 'place' else ''}{word}."
        for (film, person), word in zip(sides, shown, strict=True)
    ]
    alike = groups[0] == groups[1]
    yield ("yes" if alike else "no",), " ".join([*told, conclude_same(shown, alike)])
