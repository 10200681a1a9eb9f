"""What a question asks: an attribute of the person that a relation leads to, in the forms of 2WikiMultihopQA.

Each form is a pattern over the question's words without its title, and how the fact is told: the attribute of the
person, the relation of the first passage's subject to the person.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.envs.qa.writer.facts import Facts
from turnwise.envs.qa.writer.templates import ATTRIBUTES
from turnwise.rewards import normalise_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`Form(name="director", asks=re.compile("director of film"), tell="{} was directed by {}.")`."""

    name: str
    asks: re.Pattern[str]
    tell: str


def _form(name: str, asks: str, tell: str) -> Form:
    return Form(name=name, asks=re.compile(asks), tell=tell)


RELATION_FORMS = (
    _form("director", r"director of (?:the )?(?:film|movie)", "{} was directed by {}."),
    _form("performer", r"performer of (?:the )?song", "{} is by {}."),
    _form("composer", r"composer of (?:the )?(?:film|movie|song)", "The music of {} is by {}."),
    _form("father", r"#'s father\b|\bfather of #", "The father of {} is {}."),
    _form("mother", r"#'s mother\b|\bmother of #", "The mother of {} is {}."),
    _form("husband", r"#'s husband\b|\bhusband of #", "The husband of {} is {}."),
    _form("wife", r"#'s wife\b|\bwife of #", "The wife of {} is {}."),
    _form("founder", r"\bfounder of ", "{} was founded by {}."),
    _form("publisher", r"\bcompany that published ", "{} is published by {}."),
    _form("editor", r"\beditor of ", "{} was edited by {}."),
    _form("presenter", r"\bpresenter of ", "{} was presented by {}."),
)
"""`#` is the title in the question's words."""

ATTRIBUTE_FORMS = (
    _form("birth_place", r"\bwhere (?:was|is) .*\bborn\b|\bplace of birth\b", ATTRIBUTES["birth_place"].tell),
    _form("burial", r"\bplace of burial\b|\bwhere .*\bburied\b", "{} was buried in {}."),
    _form("death_place", r"\bwhere did .*\bdie\b|\bplace of death\b", ATTRIBUTES["death_place"].tell),
    _form("born", r"\bwhen (?:was|is) .*\bborn\b|\bdate of birth\b|\bbirthday\b", ATTRIBUTES["born"].tell),
    _form("died", r"\bwhen did .*\bdie\b|\bdate of death\b", ATTRIBUTES["died"].tell),
    _form("cause", r"\bwhy did .*\bdie\b|\bcause of death\b", "{} died of {}."),
    _form("nationality", r"\bnationality\b|\bwhich country\b", ATTRIBUTES["nationality"].tell),
    _form("study", r"\bgraduate from\b|\bstudy\b", "{} studied at {}."),
    _form("work", r"\bwork at\b", "{} worked at {}."),
    _form("award", r"\baward\b", "{} received {}."),
    _form("founded", r"\bfounded\b", "{} was founded in {}."),
    _form("spouse", r"\bwho is the spouse of\b", ATTRIBUTES["spouse"].tell),
    _form("father", r"\bwho is the father of\b", ATTRIBUTES["father"].tell),
    _form("mother", r"\bwho is the mother of\b", ATTRIBUTES["mother"].tell),
    _form("child", r"\bwho is the child of\b", "The child of {} is {}."),
)

KINSHIPS = {
    "paternal grandfather": ("The father of {} is {}.", "The father of {} is {}."),
    "paternal grandmother": ("The father of {} is {}.", "The mother of {} is {}."),
    "maternal grandfather": ("The mother of {} is {}.", "The father of {} is {}."),
    "maternal grandmother": ("The mother of {} is {}.", "The mother of {} is {}."),
    "father-in-law": ("The spouse of {} is {}.", "The father of {} is {}."),
    "mother-in-law": ("The spouse of {} is {}.", "The mother of {} is {}."),
    "stepmother": ("The father of {} is {}.", "The wife of {} is {}."),
    "stepfather": ("The mother of {} is {}.", "The husband of {} is {}."),
    "father": ("The mother of {} is {}.", "The husband of {} is {}."),
    "mother": ("The father of {} is {}.", "The wife of {} is {}."),
}
"""Both facts from which a kinship follows: of the subject to the person between, and of that person to the answer."""


def name_relation(text: str, subject: Facts) -> Form | None:
    """The relation by which the question leads from the subject to the person."""
    words = _without_title(text, subject)
    return next((form for form in RELATION_FORMS if form.asks.search(words)), None)


def name_attribute(text: str, subject: Facts) -> Form | None:
    """What the question asks of the person."""
    words = _without_title(text, subject)
    return next((form for form in ATTRIBUTE_FORMS if form.asks.search(words)), None)


def name_kinship(text: str) -> tuple[str, str] | None:
    """The facts from which the kinship that is asked for follows."""
    words = text.lower()
    return next((facts for kinship, facts in KINSHIPS.items() if kinship in words), None)


def find_subjects(text: str, gold: Sequence[Facts]) -> list[Facts]:
    """The passages whose titles the question has, in its order; a title inside a longer one is not there."""
    words = normalise_answer(text)
    titles = {name: one for one in gold for name in map(normalise_answer, (one.passage.title, one.name)) if name}
    found: dict[int, Facts] = {}
    for title in sorted(titles, key=len, reverse=True):
        place = words.find(title)
        if place >= 0 and titles[title] not in found.values():
            found[place] = titles[title]
            words = words.replace(title, "|" * len(title), 1)
    return [found[place] for place in sorted(found)]


def _without_title(text: str, subject: Facts) -> str:
    """The question in small letters, with `#` for the title."""
    words = " ".join(text.lower().split())
    for title in (subject.passage.title.lower(), subject.name.lower()):
        if title in words:
            return words.replace(title, "#").replace("# '", "#'")
    return words
