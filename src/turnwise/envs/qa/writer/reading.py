"""Facts of a passage, read more freely than those that questions are written from: where a gold answer checks them.

`facts.py` leaves out what is not plain, since a fact that is read wrongly makes a wrong question. Here a misreading
that contradicts the gold answer is noticed: so the first date is a birth, the first nation that of the passage.
"""

import re

from turnwise.envs.qa.nations import COUNTRIES, DEMONYMS, SAME_COUNTRY
from turnwise.envs.qa.writer import patterns
from turnwise.envs.qa.writer.facts import Date, Facts, read_date

_OPENING = 300
_NATION_IN = 500
_LONGEST_LIFE = 110
_SHORTEST_LIFE = 8
_BORN = re.compile(rf"\b[Bb]orn [^.]{{0,40}}?({patterns.DATE})")
_YEAR = re.compile(r"\b(1\d\d\d|20\d\d)\b")
_FURTHER_DEMONYMS = {
    "Belarusian": "Belarus", "Syrian": "Syria", "Iraqi": "Iraq", "Afghan": "Afghanistan", "Soviet": "Soviet Union",
    "Bosnian": "Bosnia and Herzegovina", "Macedonian": "North Macedonia", "Cypriot": "Cyprus", "Maltese": "Malta",
    "Azerbaijani": "Azerbaijan", "Mongolian": "Mongolia", "Ugandan": "Uganda", "Tanzanian": "Tanzania",
    "Zimbabwean": "Zimbabwe", "Ethiopian": "Ethiopia", "Senegalese": "Senegal", "Argentinian": "Argentina",
    "Argentinean": "Argentina", "Philippine": "Philippines", "Salvadoran": "El Salvador", "Cape Verdean": "Cape Verde",
    "Bollywood": "India", "Malayalam": "India", "Tamil": "India", "Telugu": "India", "Hindi": "India",
    "Kannada": "India", "Czechoslovak": "Czechoslovakia", "Yugoslav": "Yugoslavia", "Kuwaiti": "Kuwait",
    "Luxembourgish": "Luxembourg", "U.S.": "United States", "US": "United States",
}  # fmt: skip
_DEMONYMS = {**DEMONYMS, **_FURTHER_DEMONYMS}
_FURTHER_COUNTRIES = ("Soviet Union", "Cape Verde", "Czechoslovakia", "Yugoslavia", "Democratic Republic of the Congo")


def _any_of(words: list[str]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})(?!\w)")


_DEMONYM = _any_of([*_DEMONYMS])
_COUNTRY = _any_of([*COUNTRIES, *_FURTHER_COUNTRIES])


def read_life(one: Facts) -> tuple[Date | None, Date | None]:
    """Birth and death: as facts have them, else the first date of the opening and the next."""
    born, died = one.born, one.died
    if born is not None and died is not None:
        return born, died
    text = one.passage.text
    dates = [date for found in patterns.DATES.finditer(text[:_OPENING]) if (date := read_date(found[0]))]
    if born is None and (said := _BORN.search(text)):
        born = read_date(said[1])
    if born is None and dates:
        born = dates[0]
    if died is None and len(dates) > 1 and _SHORTEST_LIFE <= dates[1].year - dates[0].year <= _LONGEST_LIFE:
        died = dates[1]
    return born, died


def read_year(one: Facts) -> int | None:
    """When a work came out or an organisation was founded: as facts have it, else the first year of the passage."""
    if one.year is not None:
        return one.year
    text = one.passage.text
    found = patterns.RELEASED.search(text) or patterns.FOUNDED.search(text) or _YEAR.search(text)
    return int(found[1]) if found else None


def read_nation(one: Facts) -> tuple[str, str] | None:
    """The word for a nation and its country: `("Syrian", "Syria")`; as facts have it, else the first of the opening."""
    if one.country is not None:
        return one.country, SAME_COUNTRY.get(one.country, one.country)
    if one.nationality is not None:
        return one.nationality, _DEMONYMS[one.nationality]
    text = one.passage.text[:_NATION_IN].replace("New South Wales", "Australia")
    country, demonym = _COUNTRY.search(text), _DEMONYM.search(text)
    if country and (one.kind == "place" or demonym is None):
        return country[1], SAME_COUNTRY.get(country[1], country[1])
    return (demonym[1], _DEMONYMS[demonym[1]]) if demonym else None


def tell_nation(one: Facts, wanted: str) -> str | None:
    """`"Ada Brandt is Swedish."` or `"Ada Brandt is from Sweden."`, as the passage has it, where Sweden is wanted."""
    text = one.passage.text[:_NATION_IN]
    for demonym, country in _DEMONYMS.items():
        if wanted.lower() in (demonym.lower(), country.lower()):
            if demonym in text:
                return f"{one.name} is {demonym}."
            if country in text:
                return f"{one.name} is from {country}."
    return None
