"""Questions over a generated encyclopedia: chains of relations, put in words.

Invariant: a question names only its subject, never an entity met on the way, so that each hop needs its own look-up.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from turnwise.envs.encyclopedia_world import KINDS, World

NOUNS: Mapping[str, tuple[str, ...]] = {
    "birthplace": ("the birthplace of {s}", "the city where {s} was born"),
    "employer": ("the employer of {s}", "the company that employs {s}"),
    "spouse": ("the spouse of {s}", "the person married to {s}"),
    "country": ("the country of {s}", "the country where {s} lies"),
    "mayor": ("the mayor of {s}", "the person who governs {s}"),
    "founder": ("the founder of {s}", "the person who started {s}"),
    "headquarters": ("the headquarters of {s}", "the city where {s} is based"),
    "author": ("the author of {s}", "the person who wrote {s}"),
    "publisher": ("the publisher of {s}", "the company that published {s}"),
    "capital": ("the capital of {s}", "the city that {s} is ruled from"),
    "president": ("the president of {s}", "the person who leads {s}"),
}
"""An entity named by its relation to {s}: every hop but the last."""

ASKS: Mapping[str, tuple[str, ...]] = {
    "birthplace": ("Where was {s} born?", "In which city was {s} born?", "What is the birthplace of {s}?"),
    "employer": ("Who employs {s}?", "Which company does {s} work for?", "What is the employer of {s}?"),
    "spouse": ("Who is married to {s}?", "Who is the spouse of {s}?"),
    "country": ("In which country is {s}?", "Which country does {s} lie in?"),
    "mayor": ("Who is the mayor of {s}?", "Who governs {s}?"),
    "founder": ("Who founded {s}?", "Who is the founder of {s}?"),
    "headquarters": ("Where is {s} based?", "In which city is {s} based?"),
    "author": ("Who wrote {s}?", "Who is the author of {s}?"),
    "publisher": ("Who published {s}?", "Which company published {s}?"),
    "capital": ("What is the capital of {s}?", "Which city is {s} ruled from?"),
    "president": ("Who is the president of {s}?", "Who leads {s}?"),
}
"""The last hop, as a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`Question(text="Where was the author of The Red Door born?", subject="The Red Door", chain=("author", ...))`."""

    text: str
    subject: str
    chain: tuple[str, ...]
    met: tuple[str, ...]
    """The entities along the chain, the answer last."""

    @property
    def answer(self) -> str:
        return self.met[-1]


def ask(world: World, rng: random.Random, hops: int) -> Question:
    """A question of this many hops whose chain never comes back to an entity it has met."""
    while True:
        kind, chain = rng.choice(tuple(chains(hops)))
        subject = rng.choice(world.entities[kind])
        met = world.follow(subject, chain)
        if len({subject, *met}) == hops + 1:
            break
    phrase = subject
    for relation in chain[:-1]:
        phrase = rng.choice(NOUNS[relation]).format(s=phrase)
    text = rng.choice(ASKS[chain[-1]]).format(s=phrase)
    return Question(text=text, subject=subject, chain=chain, met=tuple(met))


def chains(hops: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every (kind of subject, chain of relations): `("work", ("author", "birthplace"))` has two hops."""

    def walk(kind: str, left: int) -> Iterator[tuple[str, ...]]:
        if left == 0:
            yield ()
            return
        for relation, target in KINDS.get(kind, {}).items():
            for rest in walk(target, left - 1):
                yield (relation, *rest)

    for kind in KINDS:
        for chain in walk(kind, hops):
            yield kind, chain
