"""Multi-hop questions, by templates from the facts of an encyclopedic corpus, as 2WikiMultihopQA was made.

Four kinds: `compositional` (an attribute of the director of a film), `inference` (a grandfather, through the father),
`comparison` (which of two is older), `bridge_comparison` (whose director is); and, where asked for, `bridge` and
`contrast`, of HotpotQA and MuSiQue. Invariant: the answer follows from the supporting passages, which are exactly those
needed, and the same seed writes the same questions, whatever others are written besides.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from turnwise.envs.qa.formats import Question
from turnwise.envs.qa.writer.bridges import ration, write_bridges
from turnwise.envs.qa.writer.contrasts import write_contrasts
from turnwise.envs.qa.writer.drafts import SOURCE, Unasked, draft, mix
from turnwise.envs.qa.writer.facts import FactBook, Facts, strip_qualifier
from turnwise.envs.qa.writer.links import Encyclopedia
from turnwise.envs.qa.writer.templates import (
    ATTRIBUTES,
    DIRECTOR,
    DIRECTORS,
    INFERENCES,
    LIVES,
    MARRIED,
    RELATIONS,
    RELEASES,
    SAME_DIRECTORS,
    SAME_FILM_NATION,
    SAME_NATION,
    SAME_PLACE,
    Contest,
    Relation,
    conclude_same,
)
from turnwise.envs.qa.writer.topics import read_topic
from turnwise.rewards import mentions, normalise_answer
from turnwise.seeds import derive_seed

Pair: TypeAlias = tuple[Facts, Facts]
"""A film and its director."""

SHARES = {"compositional": 0.42, "inference": 0.03, "comparison": 0.3, "bridge_comparison": 0.25}
"""The share of each kind, as far as the corpus has enough."""


def write_questions(
    book: FactBook,
    *,
    count: int,
    seed: int = 0,
    bridges: int = 0,
    contrasts: int = 0,
    avoid: Sequence[Question] = (),
    title_case: float = 0.8,
) -> list[Question]:
    """At most `count` questions, none with the text of one to `avoid`, with all of its supporting passages or a part.

    `bridges` and `contrasts` are how many of type `bridge` and `contrast` are written besides, among the others;
    `title_case` the share of those whose titles are written Like This, as most of 2WikiMultihopQA's are.
    """
    unasked = Unasked(avoid)
    kept: list[Question] = []
    makers = {
        "compositional": _write_compositional,
        "inference": _write_inferences,
        "comparison": _write_comparisons,
        "bridge_comparison": _write_bridges,
    }
    for kind, write in makers.items():
        rng = random.Random(derive_seed(seed, kind))
        drafts = write(book, rng, _Titles(rng, title_case))
        kept += islice(unasked.of(drafts), round(SHARES[kind] * count))
    random.Random(derive_seed(seed, "order")).shuffle(kept)
    if bridges or contrasts:
        encyclopedia = Encyclopedia(book)
        rngs = [random.Random(derive_seed(seed, kind)) for kind in ("bridge", "contrast")]
        bridged = ration(unasked.of(write_bridges(encyclopedia, rngs[0])))[:bridges] if bridges else []
        contrasted = list(islice(unasked.of(write_contrasts(encyclopedia, rngs[1])), contrasts))
        kept = _interleave([kept, bridged, contrasted], random.Random(derive_seed(seed, "bridge order")))
    return [_with_id(question, f"{SOURCE}-{seed}-{place:05d}") for place, question in enumerate(kept)]


def _interleave(kinds: Sequence[list[Question]], rng: random.Random) -> list[Question]:
    """Each kind in its order, in between the others."""
    turns = [place for place, questions in enumerate(kinds) for _ in questions]
    rng.shuffle(turns)
    sources = [iter(questions) for questions in kinds]
    return [next(sources[turn]) for turn in turns]


class _Titles:
    """How titles are written in questions."""

    def __init__(self, rng: random.Random, title_case: float) -> None:
        self._rng, self._share = rng, title_case

    def of(self, *facts: Facts) -> list[str]:
        raised = self._rng.random() < self._share
        return [one.passage.title.title() if raised else one.passage.title for one in facts]


def _write_compositional(book: FactBook, rng: random.Random, titles: _Titles) -> Iterator[Question]:
    chances = [
        (subject, relation, person, attribute)
        for subject, relation, person in find_links(book)
        for name, attribute in ATTRIBUTES.items()
        if attribute.read(person) and (relation.name, name) not in INFERENCES  # a grandfather is asked for as such
    ]
    rng.shuffle(chances)
    for subject, relation, person, attribute in chances:
        answers = attribute.read(person)
        if attribute.of_person:
            answers = _prefer_title(answers, person, book)
        (title,) = titles.of(subject)
        if any(normalise_answer(answer) == normalise_answer(subject.name) for answer in answers):
            continue
        meant = rng.choice(relation.ask).format(title)
        tell = attribute.tell.format(person.name, answers[0])
        yield _question(
            rng.choice(attribute.ask)
            .format(meant)
            .replace(" 's birthday", "'s birthday" if "'s " in meant else " 's birthday"),
            answers,
            (subject, person),
            kind="compositional",
            evidence=f"{relation.tell.format(subject.name, person.name)} {tell}",
        )


def find_links(book: FactBook) -> Iterator[tuple[Facts, Relation, Facts]]:
    """Every relation from one passage to the person of another."""
    for subject in book.facts:
        married = () if subject.female is None else (MARRIED[subject.female],)
        for relation in (*RELATIONS, *married):
            if relation.kind in (None, subject.kind):
                person = book.find(getattr(subject, relation.name), "person")
                if person is None or person.passage.title == subject.passage.title:
                    continue
                if relation not in MARRIED.values() or person.female is not subject.female:
                    yield subject, relation, person


def _prefer_title(names: tuple[str, ...], person: Facts, book: FactBook) -> tuple[str, ...]:
    """The spellings of a relative's name: a title of the corpus comes first where the person's passage writes it so."""
    found = book.find(names[0], "person")
    known = (*names, *((found.name, found.passage.title) if found else ()))
    title = [found.name] if found and mentions(person.passage.text, found.name) else []
    return tuple(dict.fromkeys((*title, *known)))


def _write_inferences(book: FactBook, rng: random.Random, titles: _Titles) -> Iterator[Question]:
    chances = [
        (subject, relation, person, further)
        for subject, relation, person in find_links(book)
        for further in ("father", "mother")
        if (relation.name, further) in INFERENCES and getattr(person, further) is not None
    ]
    rng.shuffle(chances)
    for subject, relation, person, further in chances:
        (title,), answers = titles.of(subject), _prefer_title(ATTRIBUTES[further].read(person), person, book)
        wanted = INFERENCES[relation.name, further]
        asked = rng.choice((f"Who is {title}'s {wanted}?", f"Who is the {wanted} of {title}?"))
        told = f"{relation.tell.format(subject.name, person.name)} The {further} of {person.name} is {answers[0]}."
        yield _question(asked, answers, (subject, person), kind="inference", evidence=told)


def _write_comparisons(book: FactBook, rng: random.Random, titles: _Titles) -> Iterator[Question]:
    def of_kind(kind: str) -> list[Facts]:
        return [one for one in book.facts if one.kind == kind]

    people, films, albums, places = map(of_kind, ("person", "film", "album", "place"))
    persons = [one for one in people if _is_person(one)]
    sources: list[tuple[float, Iterator[Question | None]]] = [
        (6.0, _contests(people, LIVES, rng, titles)),
        (3.0, _contests(films, _work_contests("film"), rng, titles)),
        (0.3, _contests(albums, _work_contests("album"), rng, titles)),
        (2.5, _sames(persons, SAME_NATION, lambda one: one.nation, "{} is {}.", "nationality", rng, titles)),
        (1.0, _sames(films, SAME_FILM_NATION, lambda one: one.nation, "{} is {}.", "nationality", rng, titles)),
        (3.0, _sames(places, SAME_PLACE, lambda one: one.state, "{} is in {}.", "country", rng, titles)),
    ]
    yield from mix(sources, rng)


def _is_person(one: Facts) -> bool:
    """Whether it lives or is called what people are: to `Facts` all is a person that has a nationality alone."""
    topic = read_topic(one)
    return bool(one.born or one.died or (topic and topic.kind == "person"))


def _work_contests(word: str) -> tuple[Contest, ...]:
    return tuple(
        Contest(
            ask=tuple(one.replace("#", word) for one in ask),
            tell="{} came out in {}.",
            read=lambda one: one.year,
            first=first,
        )
        for ask, first in RELEASES
    )


def _contests(
    entrants: Sequence[Facts], contests: Sequence[Contest], rng: random.Random, titles: _Titles
) -> Iterator[Question | None]:
    able = [[one for one in entrants if contest.read(one) is not None] for contest in contests]
    weights = [len(contest.ask) if len(able[place]) > 1 else 0 for place, contest in enumerate(contests)]
    while any(weights):
        (place,) = rng.choices(range(len(contests)), weights)
        contest, pair = contests[place], rng.sample(able[place], 2)
        numbers = [_known(contest.read(one)) for one in pair]
        if numbers[0] == numbers[1] or pair[0].name == pair[1].name:
            yield None
            continue
        written = titles.of(*pair)
        won = numbers.index((min if contest.first else max)(numbers))
        told = [contest.tell.format(one.name, number) for one, number in zip(pair, numbers, strict=True)]
        yield _question(
            rng.choice(contest.ask).format(*written),
            _spellings(written[won], pair[won]),
            tuple(pair),
            kind="comparison",
            evidence=" ".join([*told, contest.conclude(numbers)]),
        )


def _known(number: int | None) -> int:
    assert number is not None  # only those that have one compete
    return number


def _sames(
    entrants: Sequence[Facts],
    ask: Sequence[str],
    group: Callable[[Facts], str | None],
    tell: str,
    shown: str,
    rng: random.Random,
    titles: _Titles,
) -> Iterator[Question | None]:
    """Yes-no questions, as many of each answer."""
    able = [one for one in entrants if group(one) is not None]
    by_group: dict[str, list[Facts]] = {}
    for one in able:
        by_group.setdefault(str(group(one)), []).append(one)
    while len(by_group) > 1:
        first = rng.choice(able)
        alike = rng.random() < 0.5
        second = rng.choice(by_group[str(group(first))] if alike else able)
        while not alike and group(second) == group(first):
            second = rng.choice(able)
        if first is second:
            yield None
            continue
        words = [getattr(one, shown) for one in (first, second)]
        told = [tell.format(one.name, word) for one, word in zip((first, second), words, strict=True)]
        evidence = " ".join([*told, conclude_same(words, alike)])
        text = rng.choice(ask).format(*titles.of(first, second))
        yield _question(text, ("yes" if alike else "no",), (first, second), kind="comparison", evidence=evidence)


def _write_bridges(book: FactBook, rng: random.Random, titles: _Titles) -> Iterator[Question]:
    pairs = [(film, person) for film, relation, person in find_links(book) if relation is DIRECTOR]
    sources: list[tuple[float, Iterator[Question | None]]] = [
        (3.0, _bridge_contests(pairs, rng, titles)),
        (1.0, _bridge_sames(pairs, rng, titles)),
    ]
    yield from mix(sources, rng) if len(pairs) > 1 else ()


def _bridge_contests(pairs: Sequence[Pair], rng: random.Random, titles: _Titles) -> Iterator[Question | None]:
    able = [[pair for pair in pairs if contest.read(pair[1]) is not None] for contest in DIRECTORS]
    weights = [len(contest.ask) if len(able[place]) > 1 else 0 for place, contest in enumerate(DIRECTORS)]
    while any(weights):
        (place,) = rng.choices(range(len(DIRECTORS)), weights)
        contest, chosen = DIRECTORS[place], rng.sample(able[place], 2)
        numbers = [_known(contest.read(person)) for _, person in chosen]
        if numbers[0] == numbers[1] or not _apart(chosen):
            yield None
            continue
        written = titles.of(chosen[0][0], chosen[1][0])
        won = numbers.index((min if contest.first else max)(numbers))
        told = [
            f"{film.name} was directed by {person.name}, {contest.tell.format(number)}."
            for (film, person), number in zip(chosen, numbers, strict=True)
        ]
        answers = _spellings(written[won], chosen[won][0])
        evidence = " ".join([*told, contest.conclude(numbers)])
        yield _bridge(rng.choice(contest.ask).format(*written), answers, chosen, evidence)


def _bridge_sames(pairs: Sequence[Pair], rng: random.Random, titles: _Titles) -> Iterator[Question | None]:
    able = [pair for pair in pairs if pair[1].nation is not None]
    by_nation: dict[str | None, list[Pair]] = {}
    for pair in able:
        by_nation.setdefault(pair[1].nation, []).append(pair)
    while len(by_nation) > 1:
        first, alike = rng.choice(able), rng.random() < 0.5
        second = rng.choice(by_nation[first[1].nation] if alike else able)
        while not alike and second[1].nation == first[1].nation:
            second = rng.choice(able)
        if not _apart([first, second]):
            yield None
            continue
        told = [
            f"{film.name} was directed by {person.name}, who is {person.nationality}."
            for film, person in (first, second)
        ]
        words = [person.nationality for _, person in (first, second)]
        text = rng.choice(SAME_DIRECTORS).format(*titles.of(first[0], second[0]))
        evidence = " ".join([*told, conclude_same(words, alike)])
        yield _bridge(text, ("yes" if alike else "no",), [first, second], evidence)


def _apart(chosen: Sequence[Pair]) -> bool:
    return len({one.passage.title for pair in chosen for one in pair}) == 4


def _bridge(text: str, answers: Sequence[str], chosen: Sequence[Pair], evidence: str) -> Question:
    supporting = (chosen[0][0], chosen[1][0], chosen[0][1], chosen[1][1])
    return _question(text, answers, supporting, kind="bridge_comparison", evidence=evidence)


def _spellings(written: str, one: Facts) -> tuple[str, ...]:
    """The title without its qualifier, as 2WikiMultihopQA answers, then as the question has it, and as it is."""
    bare = written if one.name == one.passage.title else strip_qualifier(written)
    return tuple(dict.fromkeys((bare, written, one.passage.title, one.name)))


def _question(text: str, answers: Sequence[str], supporting: Sequence[Facts], *, kind: str, evidence: str) -> Question:
    return draft(text, answers, [one.passage for one in supporting], kind=kind, evidence=evidence)


def _with_id(question: Question, name: str) -> Question:
    return replace(question, id=name)
