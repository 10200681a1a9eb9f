"""Templates of questions and of their evidence: attributes, relations and comparisons, in 2WikiMultihopQA's phrases.

Invariant: an `ask` has a place for its subject and a `tell` states the fact, so that a question and the evidence of its
answer are made from the same fact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnwise.envs.qa.writer.facts import Facts, Kind, spell_person


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """Something to ask about a person: `{}` is the phrase that leads to the person in `ask`, and the name in `tell`."""

    ask: tuple[str, ...]
    tell: str
    read: Callable[[Facts], tuple[str, ...]]
    """The answers, the best first; empty if the passage does not state it."""
    of_person: bool = False
    """They are spellings of a person's name."""


def _date(which: str) -> Callable[[Facts], tuple[str, ...]]:
    def read(person: Facts) -> tuple[str, ...]:
        date = getattr(person, which)
        return () if date is None or date.order[1] == 0 else (date.text,)

    return read


def _one(which: str) -> Callable[[Facts], tuple[str, ...]]:
    return lambda person: () if getattr(person, which) is None else spell_person(getattr(person, which))


ATTRIBUTES = {
    "birth_place": Attribute(
        ask=("Where was {} born?", "What is the place of birth of {}?"),
        tell="{} was born in {}.",
        read=lambda person: person.birth_place,
    ),
    "death_place": Attribute(
        ask=("Where did {} die?", "Where was the place of death of {}?"),
        tell="{} died in {}.",
        read=lambda person: person.death_place,
    ),
    "born": Attribute(
        ask=("When was {} born?", "What is the date of birth of {}?", "When is {} 's birthday?"),
        tell="{} was born on {}.",
        read=_date("born"),
    ),
    "died": Attribute(
        ask=("When did {} die?", "What is the date of death of {}?"), tell="{} died on {}.", read=_date("died")
    ),
    "nationality": Attribute(
        ask=("What nationality is {}?", "Which country {} is from?"),
        tell="{} is {}.",
        read=lambda person: () if person.nationality is None or person.nation is None else (
            person.nationality, person.nation,
        ),
    ),
    "father": Attribute(
        ask=("Who is the father of {}?",), tell="The father of {} is {}.", read=_one("father"), of_person=True
    ),
    "mother": Attribute(
        ask=("Who is the mother of {}?",), tell="The mother of {} is {}.", read=_one("mother"), of_person=True
    ),
    "spouse": Attribute(
        ask=("Who is the spouse of {}?",), tell="The spouse of {} is {}.", read=_one("spouse"), of_person=True
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """How one passage leads to a person of another."""

    name: str
    ask: tuple[str, ...]
    """The phrase that leads to the person: `{}` is the title of the first passage."""
    tell: str
    kind: Kind | None = None
    """The kind of the first passage; None for any that has the relation."""


DIRECTOR = Relation(name="director", ask=("the director of film {}",), tell="{} was directed by {}.")
RELATIONS = (
    DIRECTOR,
    Relation(name="composer", ask=("the composer of film {}",), tell="The music of {} is by {}.", kind="film"),
    Relation(name="performer", ask=("the performer of song {}",), tell="{} is by {}.", kind="song"),
    Relation(name="father", ask=("{}'s father", "the father of {}"), tell="The father of {} is {}."),
    Relation(name="mother", ask=("{}'s mother", "the mother of {}"), tell="The mother of {} is {}."),
)
INFERENCES = {
    ("father", "father"): "paternal grandfather",
    ("father", "mother"): "paternal grandmother",
    ("mother", "father"): "maternal grandfather",
    ("mother", "mother"): "maternal grandmother",
    ("spouse", "father"): "father-in-law",
    ("spouse", "mother"): "mother-in-law",
}
MARRIED = {
    True: Relation(name="spouse", ask=("{}'s husband", "the husband of {}"), tell="The husband of {} is {}."),
    False: Relation(name="spouse", ask=("{}'s wife", "the wife of {}"), tell="The wife of {} is {}."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A question of which of two comes first, by a number that each has."""

    ask: tuple[str, ...]
    tell: str
    """The fact about one of them: its name and the number."""
    read: Callable[[Facts], int | None]
    first: bool
    """The smaller number wins."""
    order: str = "{} is before {}."
    """The smaller number, then the larger."""

    def conclude(self, numbers: Sequence[int]) -> str:
        """The order of both numbers, whatever the question asks for: so comparing and answering are two easy steps."""
        return self.order.format(min(numbers), max(numbers))


def _year(which: str) -> Callable[[Facts], int | None]:
    def read(one: Facts) -> int | None:
        date = getattr(one, which)
        return None if date is None else int(date.year)

    return read


def _age(person: Facts) -> int | None:
    return None if person.born is None or person.died is None else person.died.year - person.born.year


LONGER = Contest(
    ask=("Who lived longer, {} or {}?",), tell="{} lived {} years.", read=_age, first=False, order="{} is less than {}."
)
LIVES = (
    Contest(
        ask=(
            "Who was born first, {} or {}?", "Who was born earlier, {} or {}?", "Who is older, {} or {}?",
            "Was {} or {} born first?", "Who was born first out of {} and {}?",
        ),
        tell="{} was born in {}.", read=_year("born"), first=True,
    ),
    Contest(
        ask=("Who was born later, {} or {}?", "Who is younger, {} or {}?"),
        tell="{} was born in {}.", read=_year("born"), first=False,
    ),
    Contest(
        ask=("Who died first, {} or {}?", "Who died earlier, {} or {}?"),
        tell="{} died in {}.", read=_year("died"), first=True,
    ),
    Contest(ask=("Who died later, {} or {}?",), tell="{} died in {}.", read=_year("died"), first=False),
    LONGER,
)  # fmt: skip
RELEASES = (
    (
        ("Which # came out first, {} or {}?", "Which # was released first, {} or {}?",
         "Which # came out earlier, {} or {}?", "Which # was released earlier, {} or {}?"), True,
    ),
    (("Which # was released more recently, {} or {}?", "Which # came out later, {} or {}?"), False),
)  # fmt: skip
DIRECTORS = (
    Contest(
        ask=(
            "Which film has the director born first, {} or {}?", "Which film has the director born earlier, {} or {}?",
            "Which film whose director was born first, {} or {}?",
            "Which film has the director who is older, {} or {}?",
            "Which film has the director who was born earlier, {} or {}?",
            "Which film has the director who was born first, {} or {}?",
            "Which film has the director who is older than the other, {} or {}?",
        ),
        tell="born in {}", read=_year("born"), first=True,
    ),
    Contest(
        ask=(
            "Which film whose director is younger, {} or {}?", "Which film has the director born later, {} or {}?",
            "Which film has the director who was born later, {} or {}?",
        ),
        tell="born in {}", read=_year("born"), first=False,
    ),
    Contest(
        ask=(
            "Which film has the director who died earlier, {} or {}?",
            "Which film has the director died earlier, {} or {}?",
            "Which film has the director who died first, {} or {}?",
            "Which film has the director died first, {} or {}?",
        ),
        tell="who died in {}", read=_year("died"), first=True,
    ),
    Contest(
        ask=(
            "Which film has the director who died later, {} or {}?",
            "Which film has the director died later, {} or {}?",
        ),
        tell="who died in {}", read=_year("died"), first=False,
    ),
)  # fmt: skip


def conclude_same(words: Sequence[str | None], alike: bool) -> str:
    """`conclude_same(("French", "Greek"), False) == "French and Greek are different."`."""
    return f"{words[0]} and {words[1]} are {'the same' if alike else 'different'}."


SAME_NATION = (
    "Are {} and {} from the same country?", "Are both {} and {} from the same country?",
    "Are {} and {} both from the same country?", "Do {} and {} have the same nationality?",
    "Were {} and {} of the same nationality?", "Do {} and {} share the same nationality?",
)  # fmt: skip
SAME_FILM_NATION = (
    "Did the movies {} and {}, originate from the same country?", "Are the movies {} and {}, from the same country?",
    "Are both movies, {} and {}, from the same country?",
)  # fmt: skip
SAME_PLACE = (
    "Are {} and {} located in the same country?", "Are both {} and {} located in the same country?",
    "Are {} and {} both located in the same country?",
)  # fmt: skip
SAME_DIRECTORS = (
    "Are the directors of films {} and {} both from the same country?",
    "Do both films {} and {} have the directors that share the same nationality?",
    "Are director of film {} and director of film {} both from the same country?",
    "Do both directors of films {} and {} have the same nationality?",
    "Are both director of film {} and director of film {} from the same country?",
    "Do both films {} and {} have the directors from the same country?",
    "Are the directors of both films {} and {} from the same country?",
)  # fmt: skip
