"""Comparisons in HotpotQA's shapes: which of two is first or has more, whether both are of a kind, what both have in
common, and of which of them something is true.

Invariant: what is asked is stated in both passages, or is nowhere in the one of which it is not true; and no other
passage goes by their titles.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.nations import DEMONYM
from turnwise.envs.qa.writer.drafts import draft, mix, with_article
from turnwise.envs.qa.writer.links import STATEMENTS, Encyclopedia
from turnwise.envs.qa.writer.statements import Statement
from turnwise.envs.qa.writer.templates import conclude_same
from turnwise.envs.qa.writer.topics import KIND_OF, Topic
from turnwise.rewards import mentions

TYPE = "contrast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number that topics have: `#` is what both are called, and the first topic wins by `least` or most."""

    ask: tuple[str, ...]
    least: bool


_YEARS = (
    Measure(ask=("Which # was @ first, {} or {}?", "Which # was @ earlier, {} or {}?"), least=True),
    Measure(ask=("Which # was @ more recently, {} or {}?", "Which # was @ later, {} or {}?"), least=False),
)
_LIVES = (
    Measure(ask=("Which # was born first, {} or {}?", "Which # is older, {} or {}?"), least=True),
    Measure(ask=("Which # is younger, {} or {}?", "Which # was born later, {} or {}?"), least=False),
)
_SIZES = (
    Measure(ask=("Which # has more people, {} or {}?", "Which # has the larger population, {} or {}?"), least=False),
)
MEASURES: Mapping[str, tuple[str, tuple[Measure, ...]]] = {
    "band formed": ("formed", _YEARS),
    "founding year": ("founded", _YEARS),
    "release year": ("released", _YEARS),
    "publication year": ("published", _YEARS),
    "birth year": ("", _LIVES),
    "population": ("", _SIZES),
}
"""By statement: the verb, and what can be asked of its numbers."""
_BOTH = ("Are {} and {} both {}?", "Are both {} and {} {}?", "Were {} and {} both {}?")
_NATIONS = (
    "What nationality are {} and {}?",
    "{} and {} are both of what nationality?",
    "{} and {} share what nationality?",
)
_PROFESSIONS = (
    "What profession do {} and {} have in common?", "What occupation do {} and {} share?",
    "{} and {} are both known for what profession?", "Which profession do both {} and {} have?",
)  # fmt: skip
_COUNTRIES = ("{} and {} are located in what country?", "In which country are both {} and {}?")
_WHICH = ("Which # was {}, {} or {}?", "Which # is the one {}, {} or {}?")
_DESCRIBED = (
    "director",
    "founder",
    "founding year",
    "band formed",
    "network",
    "performer",
    "author",
    "birthplace",
    "creator",
)
"""Statements by whose value one of two is asked for."""
_WHO = "person"
_OCCUPATION_ENDS = re.compile(
    r"[.;:(]| (?:who|best|known|from|of|in|at|for|with|born|based|active|whose|currently|that|which|most|noted|to|on|"
    r"by|since|working|and (?:a |an |the |is|was|former)|as|during)\b|,? (?:best|most|who)\b"
)
_BETWEEN = re.compile(r", and |, | and | & |/")
_PLURALS = {"series": "series", "genus": "genera"}
_TELL_LITTLE = frozenset((
    "player", "host", "center", "guard", "tackle", "safety", "administrator", "receiver", "executive", "model",
    "jockey", "book",
))  # fmt: skip
_TOLD_APART = ("person", "magazine", "book")
"""Kinds whose words do not mean the same: a town may be a municipality, but no novel is a play."""
_STAGES = frozenset(("film", "silent", "television", "theatre", "theater", "stage", "screen", "movie"))
"""Words before a trade that is the same without them."""
_KIN = (
    ("writer", "screenwriter", "author", "novelist", "playwright", "dramatist", "essayist"),
    ("director", "filmmaker"),
    ("actor", "actress"),
    ("singer", "vocalist", "singer-songwriter", "soprano", "tenor"),
    ("musician", "guitarist", "pianist", "drummer", "bassist", "violinist", "cellist", "saxophonist", "trumpeter"),
    ("businessman", "businesswoman", "entrepreneur", "industrialist", "executive"),
)
"""Trades of which who has one may be said to have another."""
_NATION = re.compile(rf"\b(?:{DEMONYM})(?:-(?:born|American|Canadian|British))?\b ?")
_FOR_NOW = frozenset(
    ("former", "current", "retired", "noted", "famous", "notable", "award-winning", "prominent", "late")
)
_TRIES = 300
"""Failed draws in a row of one source, after which another one has its turn."""


def write_contrasts(encyclopedia: Encyclopedia, rng: random.Random) -> Iterator[Question]:
    """Endless while the corpus has what can be compared."""
    pairs = _Pairs(encyclopedia, rng)
    sources: list[tuple[float, Iterator[Question | None]]] = [
        (4.0, _measured(pairs)),
        (2.0, _same_nation(pairs)),
        (2.0, _same_kind(pairs)),
        (1.5, _shared(pairs, _NATIONS, "{} is {}.", _nation_of)),
        (2.0, _shared_profession(pairs)),
        (0.7, _shared(pairs, _COUNTRIES, "{} is in {}.", _country_of)),
        (2.5, _which(pairs)),
    ]
    yield from mix([(weight, _insist(source)) for weight, source in sources], rng)


def _insist(source: Iterator[Question | None]) -> Iterator[Question | None]:
    """Its questions, with few failures in between: so weights are those of questions, however seldom one is found."""
    while True:
        yield next((question for question in islice(source, _TRIES) if question is not None), None)


class _Pairs:
    """Two different topics at a time that are called the same, each by a name that is not in the other's."""

    def __init__(self, encyclopedia: Encyclopedia, rng: random.Random) -> None:
        self.rng = rng
        self._encyclopedia = encyclopedia
        self.topics = [
            one
            for one in encyclopedia.topics
            if one.known_as and encyclopedia.has_one(one.title) and _last(one) in KIND_OF and _last(one) != _WHO
        ]
        self.called: dict[str, list[Topic]] = defaultdict(list)
        for one in self.topics:
            self.called[_last(one)].append(one)
        self._names = [name for name, listed in self.called.items() if len(listed) > 1]
        # Kinds with many topics are asked about more, but not as much as there are more of them.
        self._weights = [len(self.called[name]) ** 0.5 for name in self._names]

    def names(self, pair: Sequence[Topic]) -> list[str]:
        """As a question names them: with what tells one from others of its name."""
        return [one.name if self._encyclopedia.has_one(one.name) else one.title for one in pair]

    def alike(self) -> tuple[Topic, Topic] | None:
        if not self._names:
            return None
        (name,) = self.rng.choices(self._names, self._weights)
        return self.of(self.called[name], self.called[name])

    def of(self, some: Sequence[Topic], others: Sequence[Topic]) -> tuple[Topic, Topic] | None:
        if not some or not others:
            return None
        one, other = self.rng.choice(some), self.rng.choice(others)
        apart = one is not other and one.name not in other.name and other.name not in one.name
        return (one, other) if apart else None


def _measured(pairs: _Pairs) -> Iterator[Question | None]:
    by_name = {statement.name: statement for statement in STATEMENTS if statement.name in MEASURES}
    assert by_name.keys() == MEASURES.keys()
    while True:
        pair = pairs.alike()
        name = pairs.rng.choice(list(MEASURES))
        numbers = None if pair is None else [_number(by_name[name], one) for one in pair]
        if pair is None or numbers is None or None in numbers or numbers[0] == numbers[1]:
            yield None
            continue
        known = [number for number in numbers if number is not None]
        verb, measures = MEASURES[name]
        measure = pairs.rng.choice(measures)
        won = pair[known.index((min if measure.least else max)(known))]
        text = pairs.rng.choice(measure.ask).replace("#", _called(pair)).replace("@", verb)
        told = [_tell(by_name[name], one) for one in pair]
        order = "{} is less than {}." if name == "population" else "{} is before {}."
        shown = [f"{number:,}" if name == "population" else str(number) for number in sorted(known)]
        evidence = " ".join([*told, order.format(*shown)])
        yield _draft(text.format(*pairs.names(pair)), (won.name, won.title), pair, evidence)


def _same_nation(pairs: _Pairs) -> Iterator[Question | None]:
    """Yes where both are of the nationality that is asked for, no where one of them is."""
    while True:
        pair = pairs.alike()
        nations = [] if pair is None else [one.facts.nationality for one in pair]
        alike = bool(nations) and nations[0] == nations[1]
        if pair is None or None in nations or not _wanted_alike(pairs, alike):
            yield None
            continue
        shown = [str(nation) for nation in nations]
        place = pairs.rng.randrange(2)
        if not alike and (_nation_of(pair[0])[1] == _nation_of(pair[1])[1] or _says(pair[1 - place], shown[place])):
            yield None
            continue
        plural = "" if _last(pair[0]) in _TELL_LITTLE else pairs.rng.choice(("", f" {_plural(_last(pair[0]))}"))
        evidence = " ".join([f"{one.name} is {word}." for one, word in zip(pair, shown, strict=True)])
        yield _yes_no(pairs, f"{shown[place]}{plural}", pair, shown, evidence)


def _same_kind(pairs: _Pairs) -> Iterator[Question | None]:
    """Yes where both are called what is asked for; no where one of them is, and the other's opening never says it."""
    names = [
        name
        for name, listed in pairs.called.items()
        if len(listed) > 2 and name not in _TELL_LITTLE and KIND_OF[name] in _TOLD_APART
    ]
    while names:
        name = pairs.rng.choice(names)
        kin = [one for one in names if _kin(one) != _kin(name) and KIND_OF[one] == KIND_OF[name]]
        alike = pairs.rng.random() < 0.5
        other = name if alike or not kin else pairs.rng.choice(kin)
        pair = pairs.of(pairs.called[name], pairs.called[other])
        if pair is None or (name == other) != alike or (not alike and _says(pair[1], name)):
            yield None
            continue
        swapped = pairs.rng.choice((pair, pair[::-1]))
        told = " ".join(f"{one.name} is {with_article(one.known_as)}." for one in swapped)
        yield _yes_no(pairs, _plural(name), swapped, [_last(one) for one in swapped], told)


def _shared(
    pairs: _Pairs, ask: Sequence[str], tell: str, read: Callable[[Topic], tuple[str, ...]]
) -> Iterator[Question | None]:
    """What both have: the answers are the first one's."""
    while True:
        pair = pairs.alike()
        found = [] if pair is None else [read(one) for one in pair]
        if pair is None or not all(found) or found[0] != found[1] or _is_told(pair, found[0][0]):
            yield None
            continue
        told = " ".join(tell.format(one.name, found[0][0]) for one in pair)
        yield _draft(pairs.rng.choice(ask).format(*pairs.names(pair)), found[0], pair, told)


def _shared_profession(pairs: _Pairs) -> Iterator[Question | None]:
    trades = {one.id: _trades(one) for one in pairs.topics if one.kind == one.facts.kind == _WHO}
    having: dict[str, list[Topic]] = defaultdict(list)
    for one in pairs.topics:
        for trade in trades.get(one.id, ()):
            having[trade].append(one)
    common = [trade for trade, listed in having.items() if len(listed) > 1]
    weights = [len(having[trade]) ** 0.5 for trade in common]
    while common:
        (trade,) = pairs.rng.choices(common, weights)
        pair = pairs.of(having[trade], having[trade])
        answers = () if pair is None else _name_trade(trade, *(trades[one.id] for one in pair))
        if pair is None or not answers or not _share_only(trade, pair):
            yield None
            continue
        told = " ".join(f"{one.name} is {with_article(answers[0])}." for one in pair)
        yield _draft(pairs.rng.choice(_PROFESSIONS).format(*pairs.names(pair)), answers, pair, told)


def _which(pairs: _Pairs) -> Iterator[Question | None]:
    """Of two that are called the same, the one of which a statement is true."""
    statements = [one for one in STATEMENTS if one.name in _DESCRIBED and one.described]
    while True:
        pair, statement = pairs.alike(), pairs.rng.choice(statements)
        values = [] if pair is None else [statement.find(one) for one in pair]
        texts = [value.text for value in values if value is not None]
        if pair is None or len(texts) < 2 or not all(_is_plain(text, statement) for text in texts):
            yield None
            continue
        if mentions(pair[1].facts.passage.text, texts[0]) or _is_told(pair, texts[0]):
            yield None
            continue
        described = statement.described.format(texts[0]).removeprefix("who ")
        words = pairs.names(pairs.rng.choice((pair, pair[::-1])))
        text = pairs.rng.choice(_WHICH).replace("#", _called(pair)).format(described, *words)
        told = " ".join(_tell(statement, one) for one in pair)
        yield _draft(text, (pair[0].name, pair[0].title), pair, told)


def _is_plain(text: str, statement: Statement) -> bool:
    """Whether a value is a whole name or a number: no people's name, and more than one word where it is a person's."""
    return not _NATION.search(text) and (len(re.split("[ -]", text)) > 1 or statement.to != (_WHO,))


def _yes_no(pairs: _Pairs, asked: str, pair: tuple[Topic, Topic], words: Sequence[str], told: str) -> Question:
    alike = words[0] == words[1]
    text = pairs.rng.choice(_BOTH).format(*pairs.names(pair), asked)
    return _draft(text, ("yes" if alike else "no",), pair, f"{told} {conclude_same(words, alike)}")


def _draft(text: str, answers: Sequence[str], pair: tuple[Topic, Topic], evidence: str) -> Question:
    return draft(text.replace("??", "?"), answers, [one.facts.passage for one in pair], kind=TYPE, evidence=evidence)


def _wanted_alike(pairs: _Pairs, alike: bool) -> bool:
    """So that yes and no are about as likely: few pairs are alike."""
    return alike or pairs.rng.random() < 0.25


def _number(statement: Statement, topic: Topic) -> int | None:
    value = statement.find(topic)
    return None if value is None else int(value.text.replace(",", ""))


def _tell(statement: Statement, topic: Topic) -> str:
    value = statement.find(topic)
    assert value is not None  # only of topics that have one
    return statement.tell.format(topic.name, value.text)


def _called(pair: tuple[Topic, Topic]) -> str:
    """All that both are called where it is the same, else the last word."""
    return pair[0].known_as if pair[0].known_as == pair[1].known_as else _last(pair[0])


def _last(topic: Topic) -> str:
    return topic.known_as.split()[-1]


def _says(topic: Topic, word: str) -> bool:
    return word.casefold() in topic.facts.passage.text.casefold()


def _is_told(pair: tuple[Topic, Topic], answer: str) -> bool:
    return any(mentions(one.title, answer) for one in pair)


def _nation_of(topic: Topic) -> tuple[str, ...]:
    nationality, nation = topic.facts.nationality, topic.facts.nation
    return () if nationality is None or nation is None else (nationality, nation)


def _country_of(topic: Topic) -> tuple[str, ...]:
    return () if topic.facts.state is None else (topic.facts.state,)


def _trades(topic: Topic) -> dict[str, str]:
    """`{"director": "film director", "producer": "producer"}` of "is a South Korean film director and producer"."""
    words = _NATION.sub("", topic.clauses[0].split(maxsplit=2)[2])
    end = _OCCUPATION_ENDS.search(words)
    listed = _BETWEEN.split(words[: end.start()] if end else words)
    plain = [" ".join(word for word in one.split() if word not in _FOR_NOW) for one in listed]
    named = [one for one in plain if one.islower() and KIND_OF.get(one.split()[-1]) == _WHO and len(one.split()) < 4]
    return {
        one if one.split()[-1] in _TELL_LITTLE else one.split()[-1]: one for one in named if one not in _TELL_LITTLE
    }


def _name_trade(trade: str, first: Mapping[str, str], second: Mapping[str, str]) -> tuple[str, ...]:
    """What both are, and what else it may be called; nothing of an art director and a film director."""
    if any(other != trade and _kin(other) == _kin(trade) for other in (*first, *second)):
        return ()
    if first[trade] == second[trade]:
        return first[trade], trade
    before = [set(one[trade].split()[:-1]) for one in (first, second)]
    return (trade,) if not all(before) or before[0] | before[1] <= _STAGES else ()


def _share_only(trade: str, pair: tuple[Topic, Topic]) -> bool:
    """Whether their openings have no other trade in common, a screenwriter's and a novelist's included."""
    said = [{_kin(word) for word in re.findall(r"[a-z-]+", one.opening) if KIND_OF.get(word) == _WHO} for one in pair]
    return said[0] & said[1] == {_kin(trade.split()[-1])}


def _kin(trade: str) -> str:
    return next((kin[0] for kin in _KIN if trade in kin), trade)


def _plural(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("man"):
        return f"{word[:-3]}men"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2] not in "aeiou" else f"{word}s"
