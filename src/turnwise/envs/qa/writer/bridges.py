"""Questions that go from one passage through another, in the shapes of HotpotQA's bridges and MuSiQue's compositions.

Invariant: each passage names the next, the last states the answer, no other passage goes by their titles, and neither
the question nor the title of the last passage has the answer in it, unless it is asked for.
"""

import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import cbrt
from typing import Literal, TypeAlias

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer import patterns
from turnwise.envs.qa.writer.drafts import draft, with_article
from turnwise.envs.qa.writer.links import STATEMENTS, Encyclopedia, Link
from turnwise.envs.qa.writer.statements import Statement, Value
from turnwise.envs.qa.writer.topics import Topic
from turnwise.rewards import mentions

Shape: TypeAlias = Literal["phrase", "sentence", "name"]
"""`In what year was the publisher of X founded?`, `X is a game published by a company founded in what year?` and
`X is a game published by what company founded in 1921?` or `What company founded in 1921 published X?`"""

MOST_OF_ALL = 0.2
"""The share of all questions that one relation may have, where it has many."""
MANY = 100
_TWO_STOPS = re.compile(r"(?<!\.)\.\.(?!\.)")
"""Behind a name such as Jr."""
_UNNAMED = ("", "person")
"""Words that are too few to ask for a name by."""
_LIFE = re.compile(r"\b(?:born|birth\w*|died?|death|pass away)\b")
MOST_OF_LIFE, MOST_DATES = 0.12, 0.12
"""The shares of questions that mention a birth or a death, and of answers that are dates: a little over those of
HotpotQA and MuSiQue, .107 and .085."""
_PLACES = ("settlement", "region")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """A question that can be asked, before its words are chosen."""

    shape: Shape
    links: tuple[Link, ...]
    statement: Statement
    """Of the last topic: what is asked for, or what tells it from others where its name is."""
    value: Value
    relation: str
    """What its first link is counted as."""

    @property
    def target(self) -> Topic:
        return self.links[-1].target

    @property
    def fact(self) -> tuple[str, str, str, bool]:
        """What it asks, in whatever words."""
        return self.links[0].topic.id, self.target.id, self.statement.name, self.shape == "name"


Asked: TypeAlias = tuple[Chance, Question]


def write_bridges(encyclopedia: Encyclopedia, rng: random.Random) -> Iterator[Question]:
    """All that the corpus has; the first of them are of as many kinds as can be. `ration` is to follow."""
    found = list(find_chances(encyclopedia))
    rng.shuffle(found)
    asked = [
        (chance, question)
        for chance in {chance.fact: chance for chance in found}.values()
        if (question := _ask(chance, encyclopedia, rng)) is not None
    ]
    yield from (question for _, question in _even_out(_mix(asked)))


def ration(questions: Iterable[Question]) -> list[Question]:
    """In an order whose beginning has no more of births, deaths and dates than real questions, as far as others go.

    An encyclopedia states most of all when and where people were born.
    """
    waiting: dict[tuple[bool, bool], deque[tuple[int, Question]]] = defaultdict(deque)
    for place, question in enumerate(questions):
        life, date = bool(_LIFE.search(question.text)), bool(patterns.DATES.fullmatch(question.answers[0]))
        waiting[life, date].append((place, question))
    lives = dates = 0
    order: list[Question] = []
    while left := [kind for kind, queue in waiting.items() if queue]:
        spent = lives >= MOST_OF_LIFE * (len(order) + 1), dates >= MOST_DATES * (len(order) + 1)
        free = [kind for kind in left if not (kind[0] and spent[0]) and not (kind[1] and spent[1])]
        first = min(free or left, key=lambda kind: waiting[kind][0][0])
        order.append(waiting[first].popleft()[1])
        lives, dates = lives + first[0], dates + first[1]
    return order


def find_chances(encyclopedia: Encyclopedia) -> Iterator[Chance]:
    links = [
        link
        for link in encyclopedia.links(encyclopedia.topics)
        if encyclopedia.has_one(link.topic.title) and encyclopedia.has_title_once(link.target)
    ]
    relations = {(link.topic.id, link.target.id): link.relation for link in links if link.statement}
    further: dict[str, list[Link]] = {}
    for link in links:
        if _leads_on(link) == "phrase":
            further.setdefault(link.topic.id, []).append(link)
    stated = {target.id: _read_all(target) for target in {link.target.id: link.target for link in links}.values()}
    for link in links:
        relation = relations.get((link.topic.id, link.target.id), link.relation)
        for shape, links_on, statement, value in _follow(link, further, stated):
            yield Chance(shape=shape, links=links_on, statement=statement, value=value, relation=relation)


def _read_all(topic: Topic) -> list[tuple[Statement, Value]]:
    found = ((statement, statement.find(topic)) for statement in STATEMENTS)
    return [(statement, value) for statement, value in found if value is not None]


def _leads_on(link: Link) -> Shape | None:
    """How a question can go through it to what is stated of its target."""
    if link.statement is not None:
        return "phrase" if link.statement.refer else None
    noun = link.target.known_as
    if not noun or link.listed or link.lead.endswith(f"{noun.split()[-1]} of"):  # "borders the city of a city"
        return None
    return "sentence"


def _follow(
    link: Link, further: Mapping[str, Sequence[Link]], stated: Mapping[str, Sequence[tuple[Statement, Value]]]
) -> Iterator[tuple[Shape, tuple[Link, ...], Statement, Value]]:
    """What can be asked behind a link, and behind one more."""
    shape = _leads_on(link)
    paths: list[tuple[Link, ...]] = [(link,)] if shape else []
    for onward in further.get(link.target.id, ()) if shape else ():
        assert onward.statement is not None
        joined = shape == "phrase" or (onward.statement.clause and link.target.known_as not in _UNNAMED)
        if joined and onward.target.id != link.topic.id:
            paths.append((link, onward))
    for path in paths:
        for statement, value in stated[path[-1].target.id]:
            if shape is not None and (statement.ask if shape == "phrase" else statement.relative):
                yield shape, path, statement, value
    if (link.statement is None or link.statement.active) and link.target.known_as not in _UNNAMED:
        for statement, value in stated[link.target.id]:
            if statement.described:
                yield "name", (link,), statement, value


def _mix(asked: Sequence[Asked]) -> list[Asked]:
    """In an order whose beginning has of each relation and fact as many as the cube root of what there are."""
    labels = [
        ((chance.relation, "", len(chance.links)), ("", chance.statement.name, len(chance.links)))
        for chance, _ in asked
    ]
    many, seen = Counter(label for pair in labels for label in pair), Counter[tuple[str, str, int]]()
    due = []
    for pair in labels:
        seen.update(pair)
        due.append(max((seen[label] - 0.5) / cbrt(many[label]) for label in pair))
    return [asked[place] for place in sorted(range(len(asked)), key=due.__getitem__)]


def _even_out(asked: Sequence[Asked]) -> list[Asked]:
    """Without the last of a relation that has many, and more than its share of all."""
    many = Counter(chance.relation for chance, _ in asked)
    most = max(many.values(), default=0)
    while most > MANY and most > MOST_OF_ALL * sum(min(number, most) for number in many.values()):
        most -= 1
    seen: Counter[str] = Counter()
    kept = []
    for chance, question in asked:
        seen[chance.relation] += 1
        if seen[chance.relation] <= most:
            kept.append((chance, question))
    return kept


def _ask(chance: Chance, encyclopedia: Encyclopedia, rng: random.Random) -> Question | None:
    """The question in words; None where they would give the answer away."""
    first, target, value = chance.links[0], chance.target, chance.value
    name = first.topic.name if encyclopedia.has_one(first.topic.name) else first.topic.title
    given = f"{name} {first.lead}"
    if chance.shape == "name":
        described = chance.statement.described.format(value.text)
        sought = f"{rng.choice(('what', 'which'))} {target.known_as} {described}"
        text = (
            f"{sought} {first.statement.active.format(name)}?" if first.statement else f"{name} {first.lead} {sought}?"
        )
        told = f"{target.name} is {with_article(target.known_as)} {described}."
        short = target.name.split(",")[0] if target.kind in _PLACES else target.name
        answers: tuple[str, ...] = (target.name, short)
        secret: tuple[str, ...] = (target.name, value.text)
        if value.text in given:  # "all of Al Holt's films, including which film directed by Al Holt"
            return None
    else:
        text = _phrase(chance, name, rng) if chance.shape == "phrase" else _sentence(chance, name, rng)
        told = chance.statement.tell.format(target.name, value.text)
        answers = tuple(reversed(value.spellings)) if "city" in text else value.spellings
        secret = (*answers, *(link.target.name for link in chance.links))
        given = text
        if any(mentions(target.title, answer) for answer in answers):
            return None
    if any(mentions(given, name) for name in secret):
        return None
    return draft(
        text[0].upper() + text[1:],
        answers,
        [first.topic.facts.passage, *(link.target.facts.passage for link in chance.links)],
        kind="bridge",
        evidence=_TWO_STOPS.sub(".", " ".join([*map(tell_link, chance.links), told])),
    )


def _phrase(chance: Chance, name: str, rng: random.Random) -> str:
    """`In what year was the publisher of X founded?`."""
    for link in chance.links:
        assert link.statement is not None
        name = rng.choice(link.statement.refer).replace("#", link.target.known_as or link.target.kind).format(name)
    return rng.choice(chance.statement.ask).format(name)


def _sentence(chance: Chance, name: str, rng: random.Random) -> str:
    """`X is a game published by a company founded in what year?`."""
    first = chance.links[0]
    words = [name, first.lead, with_article(first.target.known_as)]
    for link in chance.links[1:]:
        assert link.statement is not None
        words += [link.statement.clause, with_article(link.target.known_as or link.target.kind)]
    return " ".join([*words, rng.choice(chance.statement.relative)])


def tell_link(link: Link) -> str:
    """The fact that leads from a passage to the next, in its own words where only they are known."""
    if link.statement is None:
        return f"{link.topic.name} {link.lead} {link.target.name}."
    return link.statement.tell.format(link.topic.name, link.target.name)
