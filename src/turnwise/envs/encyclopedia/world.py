"""A generated encyclopedia: people, places, companies and works, whose facts differ from seed to seed.

Invariant: a world is a function of its seed alone, and every relation is a function (one object per subject), so a
chain of relations from a subject has exactly one answer.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from turnwise.tools.search import Passage


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST = _words("""
    Ada Bram Cleo Dario Edith Felix Greta Hugo Iris Jonas Karin Leo Mira Nils Olga Pavel Quinn Rosa Stefan Tilda
    Umberto Vera Walter Xenia
""")
LAST = _words("""
    Alder Brandt Castor Dorn Elling Farrow Grieg Holm Ivers Jarvis Keller Lindqvist Marlow Norden Oakes Petrov
    Quist Rask Sorel Thorne Ulven Varga Weiss Yates
""")
PLACE_FRONT = _words("""
    Amber Birch Copper Dale Eagle Fern Granite Heron Iron Juniper Kestrel Lark Maple North Otter Pine
""")
PLACE_BACK = _words("""
    Bay Bridge Cross Falls Ford Gate Haven Hill Mill Moor Point Port
""")
COUNTRY = _words("""
    Avaria Belmora Cordova Drosia Elandia Fenmark Galdova Hestia Ithria Jorvland Kelmora Lusania
""")
FIRM_FRONT = _words("""
    Apex Beacon Cobalt Delta Ember Fulcrum Gallant Horizon Indigo Jupiter Keystone Lumen Meridian Nimbus Orbit
    Pinnacle
""")
FIRM_BACK = _words("""
    Press Works Studio Group Media Foundry Books Motors
""")
TITLE_FRONT = _words("""
    Silent Broken Golden Hidden Burning Distant Endless Frozen Hollow Last Little Lonely Lost Painted Quiet Red
""")
TITLE_BACK = _words("""
    Garden Mirror River Letter Station Lantern Orchard Island Winter Voyage Clock Door Empire Forest Horse
    Kingdom
""")

FACTS: Mapping[str, tuple[str, ...]] = {
    "birthplace": ("{s} was born in {o}.", "The birthplace of {s} is {o}."),
    "employer": ("{s} works for {o}.", "The employer of {s} is {o}."),
    "spouse": ("{s} is married to {o}.", "The spouse of {s} is {o}."),
    "country": ("{s} is a city in {o}.", "The country of {s} is {o}."),
    "mayor": ("{s} is governed by {o}.", "The mayor of {s} is {o}."),
    "founder": ("{s} was founded by {o}.", "The founder of {s} is {o}."),
    "headquarters": ("{s} is based in {o}.", "The headquarters of {s} are in {o}."),
    "author": ("{s} is a novel by {o}.", "The author of {s} is {o}."),
    "publisher": ("{s} was published by {o}.", "The publisher of {s} is {o}."),
    "capital": ("{s} is ruled from {o}.", "The capital of {s} is {o}."),
    "president": ("{s} is led by {o}.", "The president of {s} is {o}."),
}
"""How a passage states that the `relation` of {s} is {o}."""

KINDS: Mapping[str, Mapping[str, str]] = {
    "person": {"birthplace": "city", "employer": "company", "spouse": "person"},
    "city": {"country": "country", "mayor": "person"},
    "company": {"founder": "person", "headquarters": "city"},
    "work": {"author": "person", "publisher": "company"},
    "country": {"capital": "city", "president": "person"},
}
"""The relations of each kind of entity, with the kind they lead to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Entities by kind, and one fact per entity and relation: `facts["Ada Holm", "employer"] == "Lumen Press"`."""

    entities: Mapping[str, tuple[str, ...]]
    facts: Mapping[tuple[str, str], str]
    passages: tuple[Passage, ...]

    def follow(self, subject: str, chain: tuple[str, ...]) -> list[str]:
        """The entities met along a chain of relations, the answer last: `follow(book, ("author", "spouse"))`."""
        met = []
        for relation in chain:
            subject = self.facts[subject, relation]
            met.append(subject)
        return met


@lru_cache(maxsize=512)
def make_world(seed: int, size: int = 24) -> World:
    """A world with `size` people, and half as many cities, companies and works."""
    rng = random.Random(seed)
    half = max(size // 2, 3)
    entities = {
        "person": _names(rng, FIRST, LAST, size),
        "city": _names(rng, PLACE_FRONT, PLACE_BACK, half),
        "company": _names(rng, FIRM_FRONT, FIRM_BACK, half),
        "work": tuple(f"The {name}" for name in _names(rng, TITLE_FRONT, TITLE_BACK, half)),
        "country": tuple(rng.sample(COUNTRY, min(half // 2 + 2, len(COUNTRY)))),
    }
    facts: dict[tuple[str, str], str] = {}
    for kind, relations in KINDS.items():
        for subject in entities[kind]:
            for relation, target in relations.items():
                facts[subject, relation] = _other(rng, entities[target], subject)
    passages = [
        Passage(id=subject, title=subject, text=_tell(rng, subject, relations, facts))
        for kind, relations in KINDS.items()
        for subject in entities[kind]
    ]
    return World(entities=entities, facts=facts, passages=tuple(passages))


def _names(rng: random.Random, front: tuple[str, ...], back: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Distinct two-word names; no two share a first word while there are first words left."""
    fronts = [name for _ in range(count // len(front) + 1) for name in rng.sample(front, len(front))][:count]
    names: dict[str, None] = {}
    for name in fronts:
        full = f"{name} {rng.choice(back)}"
        while full in names:
            full = f"{name} {rng.choice(back)}"
        names[full] = None
    return tuple(names)


def _other(rng: random.Random, names: tuple[str, ...], than: str) -> str:
    while (name := rng.choice(names)) == than:
        pass
    return name


def _tell(rng: random.Random, subject: str, relations: Mapping[str, str], facts: Mapping[tuple[str, str], str]) -> str:
    sentences = [rng.choice(FACTS[relation]).format(s=subject, o=facts[subject, relation]) for relation in relations]
    return " ".join(rng.sample(sentences, len(sentences)))
