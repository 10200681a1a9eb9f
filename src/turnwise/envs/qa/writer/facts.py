"""Facts read from encyclopedic passages: who was born when and where, who directed a film, whose child a person is.

Invariant: a fact is stated in its passage, and is given in the passage's own words.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from turnwise.envs.qa.nations import DEMONYMS, SAME_COUNTRY
from turnwise.envs.qa.writer import patterns
from turnwise.rewards.retrieval import normalise_title
from turnwise.tools.search.retrieval import Passage

Kind = Literal["person", "film", "song", "album", "magazine", "place", "other"]


_WRITTEN = re.compile(r"\([^()]*[A-Z][^()]*\)$")
"""Brackets that may be part of a name: `Superman (It's Not Easy)`."""


_PARENTS_AGE = (12, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Date:
    """`Date(text="11 November 875", order=(875, 11, 11))`."""

    text: str
    """As the passage writes it."""
    order: tuple[int, int, int]
    """Year, month and day; zeros where only the year is known."""

    @property
    def year(self) -> int:
        return self.order[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one passage states of its subject; None where it does not, or not plainly."""

    passage: Passage
    kind: Kind
    born: Date | None = None
    died: Date | None = None
    birth_place: tuple[str, ...] = ()
    """The place, then the same with its region: `("Hastings", "Hastings, Minnesota")`."""
    death_place: tuple[str, ...] = ()
    nationality: str | None = None
    """`American`, of people and films."""
    year: int | None = None
    """When a work came out, or an organisation was founded."""
    country: str | None = None
    """Where a place lies."""
    place_kind: str | None = None
    director: str | None = None
    """The only one, as written; so with the next three."""
    composer: str | None = None
    performer: str | None = None
    father: str | None = None
    mother: str | None = None
    spouse: str | None = None
    female: bool | None = None

    @property
    def name(self) -> str:
        """The title without its qualifier: brackets that the passage itself does not write."""
        title = self.passage.title
        return title if _WRITTEN.search(title) and title in self.passage.text else strip_qualifier(title)

    @property
    def nation(self) -> str | None:
        """The country of the nationality: English and Scottish are of one."""
        return None if self.nationality is None else DEMONYMS[self.nationality]

    @property
    def state(self) -> str | None:
        return None if self.country is None else SAME_COUNTRY.get(self.country, self.country)


class FactBook:
    """The facts of a corpus, by passage and by name."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.facts = [read_facts(passage) for passage in passages]
        self._named = _by_name(self.facts)
        self.facts = [self._without_wrong_parents(one) for one in self.facts]
        self._named = _by_name(self.facts)
        self.by_id = {one.passage.id: one for one in self.facts}

    def _without_wrong_parents(self, one: Facts) -> Facts:
        """Without parents where a passage about one of them tells that it is the other, or somebody born later."""
        father, mother = self.find(one.father, "person"), self.find(one.mother, "person")
        wrong = (father is not None and father.female is True) or (mother is not None and mother.female is False)
        younger = any(parent is not None and not may_be_child(one, parent) for parent in (father, mother))
        return replace(one, father=None, mother=None) if wrong or younger else one

    def find(self, name: str | None, kind: Kind) -> Facts | None:
        """The passage of that kind under a name; None if there is none, or several about different subjects."""
        if name is None:
            return None
        written = normalise_title(name)
        listed = self._named.get(written) or self._named.get(normalise_title(patterns.RANK_BEFORE.sub("", name))) or []
        found = [one for one in listed if one.kind == kind]
        alike = {(one.born, one.died) for one in found}
        return found[0] if len(alike) == 1 else None


def _by_name(facts: Iterable[Facts]) -> dict[str, list[Facts]]:
    named: dict[str, list[Facts]] = {}
    for one in facts:
        for title in {normalise_title(one.passage.title), normalise_title(one.name)}:
            named.setdefault(title, []).append(one)
    return named


def may_be_child(one: Facts, parent: Facts) -> bool:
    """Whether no dates tell that it is the child of another of that name."""
    if one.born is None or parent.born is None:
        return True
    return _PARENTS_AGE[0] <= one.born.year - parent.born.year <= _PARENTS_AGE[1]


def strip_qualifier(title: str) -> str:
    """`strip_qualifier("Haiducii (film)") == "Haiducii"`."""
    return patterns.QUALIFIER.sub("", title)


def read_facts(passage: Passage) -> Facts:
    """All that the patterns find in a passage."""
    text = " ".join(passage.text.replace("( ", "(").replace(" )", ")").split())
    opening = text[:400]
    if (
        (place := patterns.PLACE.search(opening))
        and not patterns.PERSON.search(opening)
        and not patterns.FILM.search(opening)
    ):
        country = patterns.COUNTRY.search(opening[place.start() :])
        return Facts(
            passage=passage,
            kind="place",
            place_kind=place[1],
            country=country[1] if country else None,
            year=_founded(text),
        )
    film = patterns.FILM.search(opening)
    if film or "(film)" in passage.title.lower() or patterns.FILM_NO_YEAR.search(opening):
        return _read_film(passage, text, film)
    if (song := patterns.SONG.search(opening)) and not patterns.PERSON.search(opening[: song.start() + 4]):
        kind: Kind = "album" if song[1] == "album" else "song"
        released = patterns.RELEASED.search(text)
        return Facts(
            passage=passage,
            kind=kind,
            performer=_only_name(text, patterns.PERFORMED),
            composer=_only_name(text, patterns.MUSIC),
            year=int(released[1]) if released else None,
        )
    if patterns.MAGAZINE.search(opening) and not patterns.PERSON.search(opening):
        return Facts(passage=passage, kind="magazine", year=_founded(text))
    return _read_person(passage, text)


def _read_film(passage: Passage, text: str, film: re.Match[str] | None) -> Facts:
    bare = patterns.FILM_NO_YEAR.search(text[:400])
    released = patterns.RELEASED.search(text)
    year = film[1] if film else released[1] if released else None
    return Facts(
        passage=passage,
        kind="film",
        year=int(year) if year else None,
        nationality=(film[2] if film else None) or (bare[1] if bare else None),
        director=_only_name(text, patterns.DIRECTED) or _only_name(text, patterns.WRITTEN_DIRECTED),
        composer=_only_name(text, patterns.MUSIC),
    )


def _read_person(passage: Passage, text: str) -> Facts:
    born, died, birth_place, death_place = _read_life(text)
    nationality = patterns.PERSON.search(text[:500])
    if born is None and died is None and nationality is None:
        return Facts(passage=passage, kind="other", year=_founded(text))
    if (later := patterns.BORN_LATER.search(text)) and not birth_place and later.start() < 600:
        birth_place = _read_place(later[2])
        born = born or (read_date(later[1]) if later[1] else None)
    birth_place = birth_place or _read_birth_place(text)
    if (later := _find_death(text, passage.title)) and not death_place:
        death_place = _read_place(later[3])
        died = died or (read_date(later[2]) if later[2] else None)
    if died is None and (then := patterns.DIED_THEN.search(text)):
        died = read_date(then[1])
    father, mother = _read_parents(text, passage.title)
    she, he = patterns.SHE.search(text), patterns.HE.search(text)
    female = None if she is None and he is None else he is None or (she is not None and she.start() < he.start())
    wife, husband = patterns.WIFE_OF.search(text[:500]), patterns.HUSBAND_OF.search(text[:500])
    spouse = next((_person_at(text, found.end()) for found in (wife, husband) if found), None)
    if spouse is None and (married := patterns.SPOUSE.search(text)):
        spouse = _person_at(text, married.end())
    return Facts(
        passage=passage,
        kind="person",
        born=born,
        died=died,
        birth_place=birth_place,
        death_place=death_place,
        nationality=nationality[1] if nationality else None,
        father=father,
        mother=mother,
        spouse=spouse,
        female=True if wife else female,
    )


def _read_birth_place(text: str) -> tuple[str, ...]:
    """From a sentence that opens or closes with it."""
    if this := patterns.BORN_THIS.match(text):
        return _read_place(this[1])
    first = patterns.BORN_FIRST.search(text[:800])
    if first is None:
        return ()
    found = _read_place(first[1])
    # The second part of "Liverpool, Lennon became" is no region.
    region = re.match(r"$|,| (?:in|on|to|and) ", first[1][len(found[-1]) :]) if found else None
    return found if region else found[:1]


def _find_death(text: str, title: str) -> re.Match[str] | None:
    """Where it is said that the title's person died, and nobody else."""
    names = {None, "he", "she", strip_qualifier(title).split(",")[0].split()[-1].lower()}
    deaths = patterns.DIED_LATER.finditer(text)
    return next((death for death in deaths if (death[1] and death[1].lower()) in names), None)


def _read_life(text: str) -> tuple[Date | None, Date | None, tuple[str, ...], tuple[str, ...]]:
    """Birth, death and their places from the brackets behind a name."""
    for inside in re.findall(r"\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text[:300])[:3]:
        dates = list(patterns.DATES.finditer(inside))
        if len(dates) >= 2 and not re.search(r"\breign|\bdisappeared\b|\bor \d", inside):
            first, second = read_date(dates[0][0]), read_date(dates[1][0])
            if first and second and 8 <= second.year - first.year <= 110:
                return first, second, *_read_places(inside, dates[0], dates[1])
        if born := patterns.BORN.search(inside):
            return read_date(born[1]), None, _read_place(born[2] or ""), ()
        if there := patterns.BORN_THERE.search(inside):
            return read_date(there[2]), None, _read_place(there[1]), ()
    return None, None, (), ()


def _read_parents(text: str, title: str) -> tuple[str | None, str | None]:
    """Father and mother; of two names without a word of who is who, neither, unless one is of the child's family."""
    father, mother = _read_child_of(text, strip_qualifier(title))
    if found := patterns.FATHER.search(text):
        father = _person_at(text, found.end()) or father
    if found := patterns.MOTHER.search(text):
        mother = _person_at(text, found.end()) or mother
    return father, mother


def _read_child_of(text: str, child: str) -> tuple[str | None, str | None]:
    found = patterns.CHILD.search(text[:700])
    first = _person_at(text, found.end()) if found else None
    if found is None or first is None or patterns.ANOTHERS.search(text[: found.start()]):
        return None, None
    end = text.index(first, found.end()) + len(first)
    rest, before = text[end:], text[found.start() : end]
    if husband := patterns.AND_FATHER.match(rest):
        return _person_at(rest, husband.end()), first
    if patterns.WOMAN.search(before):
        return None, first
    joined = patterns.AND_MOTHER.match(rest)
    second = _person_at(rest, joined.end()) if joined else None
    family = child.split(",")[0].split()[-1]
    of_family = family in first.split() and (second is None or family not in second.split())
    if (joined and patterns.WIFE_NAMED.search(joined[0])) or patterns.MAN.search(before) or of_family:
        return first, second
    return None, None


def spell_person(name: str) -> tuple[str, ...]:
    """`("Prince Karl, Duke of Elm", "Prince Karl", "Karl")`: as written, then without what others leave out."""
    plain = patterns.RANK_BEHIND.sub("", name)
    return tuple(dict.fromkeys((name, plain, patterns.RANK_BEFORE.sub("", plain))))


def _read_places(inside: str, first: re.Match[str], second: re.Match[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of birth and death: `25 August 1719, Paris – 12 April 1806, Rouen`, or each place before its date."""
    before, _, after = patterns.SEPARATOR.sub("|", inside[first.end() : second.start()], count=1).partition("|")
    if behind := _read_place(before):
        return behind, _read_place(inside[second.end() :])
    ahead, later = _read_place(inside[: first.start()]), _read_place(after)
    return (ahead, later) if ahead and later else ((), ())  # alone, it may be another name, or a language


def _read_place(words: str) -> tuple[str, ...]:
    found = patterns.PLACE_PART.match(re.sub(r"^ *(?:in|at|near) ", "", words.strip(" ,")))
    if found is None or len(found[0]) < 3 or any(month in found[0] for month in patterns.MONTHS):
        return ()
    if re.match(r"[\w'’]|[-–] ?[A-Z]", found.string[found.end() :]):  # cut: "Saint- Chef"
        return ()
    whole = found[0].strip(" ,")
    first = whole.split(",")[0]
    return (first, whole) if first != whole else (first,)


def read_date(words: str) -> Date | None:
    year = re.search(r"\d{4}", words)
    if year is None:
        return None
    month = next((place for place, name in enumerate(patterns.MONTHS, 1) if name in words), 0)
    day = re.search(r"\b(\d{1,2})\b(?!\d)", words.replace(year[0], ""))
    return Date(text=words.strip(), order=(int(year[0]), month, int(day[1]) if day and month else 0))


def _founded(text: str) -> int | None:
    found = patterns.FOUNDED.search(text)
    return int(found[1]) if found else None


def _only_name(text: str, before: re.Pattern[str]) -> str | None:
    """The name behind a phrase, unless another is joined to it."""
    found = before.search(text)
    if found is None or (name := _name_at(text, found.end())) is None:
        return None
    rest = text[text.index(name, found.end()) + len(name) :]
    return None if patterns.NOT_ALONE.match(rest) else name


def _person_at(text: str, start: int) -> str | None:
    """A name of several words without honorifics, unless it is cut: of Thurn and Taxis, `Prince of Thurn`."""
    honorifics = patterns.HONORIFICS.match(text, start)
    name = _name_at(text, honorifics.end() if honorifics else start)
    if name is None or " " not in name:
        return None
    end = text.index(name, start) + len(name)
    return None if " of " in name and patterns.GOES_ON.match(text, end) else name


def _name_at(text: str, start: int) -> str | None:
    found = patterns.FULL_NAME.match(text, start)
    if found is None:
        return None
    name = found[1].rstrip("., ")
    if patterns.CUT.search(f"{name}|{text[found.end() :]}"):
        return None
    return name if len(name) > 2 and name not in DEMONYMS else None
