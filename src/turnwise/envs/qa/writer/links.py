"""Links between passages: what one states names the topic of another.

Invariant: a name leads to a passage only where the corpus has no other of the same name and kind, and where the name
is not part of a longer one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from turnwise.envs.qa.writer.facts import FactBook
from turnwise.envs.qa.writer.leads import is_meant, read_lead
from turnwise.envs.qa.writer.stated_of_people import BANDS, CHARACTERS, PEOPLE
from turnwise.envs.qa.writer.stated_of_places import BODIES, PLACES
from turnwise.envs.qa.writer.stated_of_works import WORKS
from turnwise.envs.qa.writer.statements import Statement, Value
from turnwise.envs.qa.writer.topics import Topic, read_topic

STATEMENTS = (*WORKS, *CHARACTERS, *PEOPLE, *BANDS, *BODIES, *PLACES)
_GOES_ON = re.compile(
    r"['’]s?\b|[\w&]|-\w|,? (?:Jr|Sr)\b| (?:&|and) [A-Z][a-z]+ (?:Company|Sons|Co)\b| (?!I\b)[A-Z0-9](?!\d{3}\b)"
)
_CAPITAL = re.compile(r"(?<![\w'’.-])[A-Z0-9][\w'’.&-]*")
_FIRST_WORD_ENDS = re.compile(r"['’]s$|[.,;'’]+$")
_RELATIONS = {
    "director": "direct[a-z]+ (?:and [a-z-]+ )?by|directed by and starring|directing|film by",
    "author": "(?:novel|book|play|essay|memoir|story|novella|poem)s? (?:written )?by",
    "writer": "(?:wrote|written)(?: and [a-z-]+)? by|screenplay by",
    "star": "(?:starring|stars|starred|star)(?: with)?",
    "performer": "(?:song|album|single|EP|recorded|performed|sung|track|released|mixtape)s? (?:and [a-z-]+ )?by",
    "composer": "(?:composed|music|score)(?: and [a-z-]+)? by",
    "producer": "produced (?:and [a-z-]+ )?by",
    "spouse": "married(?: to)?|(?:wife|husband|spouse|consort|widow) of",
    "child": "(?:son|daughter|child|children) of",
    "relative": "(?:brother|sister|father|mother|cousin|nephew|niece|uncle|aunt|grandson|grandfather|granddaughter) of",
    "sequel": "(?:sequel|prequel|follow-up|successor) to|remake of|followed",
    "album": "(?:single|song|track|taken|album) (?:from|off|on)",
    "creator": "created by",
    "founder": "(?:founded|established|started) by",
    "owner": "(?:owned|operated|owned and operated|subsidiary|division) (?:by|of)",
    "publisher": "published by",
}
"""What a link by words alone is counted as, by how they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One that a statement makes, or the words in between: then `statement` is None."""

    topic: Topic
    target: Topic
    statement: Statement | None = None
    lead: str = ""
    """The words from the topic's name to the target's: `is a 1983 computer game published by`."""
    listed: bool = False
    """The same words lead to others as well."""

    @property
    def relation(self) -> str:
        """What it is counted as: `director`, or `by person`."""
        if self.statement is not None:
            return self.statement.name
        for name, ends in _RELATIONS.items():
            if re.search(rf"\b(?:{ends})$", self.lead):
                return name
        return f"{self.lead.split()[-1]} {self.target.kind}"


class Encyclopedia:
    """The topics of a corpus, by name."""

    def __init__(self, book: FactBook) -> None:
        topics = {one.passage.id: read_topic(one) for one in book.facts}
        self.topics = [topic for topic in topics.values() if topic is not None]
        self._named: dict[str, list[Topic | None]] = {}
        for one in book.facts:
            for name in {one.passage.title, one.name} - {""}:
                self._named.setdefault(name, []).append(topics[one.passage.id])
        self._titles = Counter(one.passage.title for one in book.facts)
        self._by_word: dict[str, list[str]] = {}
        for name in self._named:
            self._by_word.setdefault(_first_word(name), []).append(name)
        for names in self._by_word.values():
            names.sort(key=lambda name: (-len(name), name))

    def has_one(self, name: str) -> bool:
        """Whether only one passage goes by the name."""
        return len(self._named[name]) == 1

    def has_title_once(self, topic: Topic) -> bool:
        """Whether no other passage has the same title, qualifier and all."""
        return self._titles[topic.title] == 1

    def links(self, topics: Iterable[Topic]) -> Iterator[Link]:
        """Those from each topic by statements, then those by words alone."""
        for topic in topics:
            for statement in STATEMENTS:
                if statement.to and (value := statement.find(topic)) is not None:
                    target = self._resolve(value, statement, topic)
                    if target is not None and _differ(topic, target):
                        yield Link(topic=topic, statement=statement, target=target)
            for clause in topic.clauses:
                yield from self._named_in(clause, topic)

    def _named_in(self, clause: str, topic: Topic) -> Iterator[Link]:
        past = 0
        for word in _CAPITAL.finditer(clause):
            name = self._longest(clause, word.start()) if word.start() >= past else None
            if name is None or name.isdigit():  # a year rather than the song called so
                continue
            past = word.start() + len(name)
            found = self._named[name]
            target = found[0] if len(found) == 1 else None
            if target is not None and _differ(topic, target):
                lead = read_lead(topic, target, clause, word.start(), past)
                if lead is not None:
                    yield Link(topic=topic, target=target, lead=lead.words, listed=lead.listed)

    def _resolve(self, value: Value, statement: Statement, topic: Topic) -> Topic | None:
        line, start = (value.line, value.start) if value.line else (value.text, 0)
        name = self._longest(line, start)
        if name is None:
            return None
        found = [one for one in self._named[name] if one is None or one.kind in statement.to]
        target = found[0] if len(found) == 1 else None
        if target is None:
            return None
        if target.facts.female is (statement.name == "father") and statement.name in ("father", "mother"):
            return None
        before = line[:start] if value.line else f"{statement.clause} "
        return target if is_meant(topic, target, before, line[start + len(name) :]) else None

    def _longest(self, text: str, start: int) -> str | None:
        """The longest name that stands there as a whole."""
        for name in self._by_word.get(_first_word(text[start:].split(maxsplit=1)[0]) if text[start:] else "", ()):
            if text.startswith(name, start) and not _GOES_ON.match(text, start + len(name)):
                return name
        return None


def _first_word(name: str) -> str:
    return _FIRST_WORD_ENDS.sub("", name.split(maxsplit=1)[0]) if name.strip() else ""


def _differ(topic: Topic, target: Topic) -> bool:
    return target.title != topic.title and target.name not in topic.name and topic.name not in target.name
