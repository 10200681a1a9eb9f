"""Questions over a generated encyclopedia: chains of relations, put in words.

Invariant: a question names only its subject, never an entity met on the way, so that each hop needs its own look-up.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from turnwise.envs.encyclopedia.world import KINDS, World

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

LEADING_TO: Mapping[str, tuple[tuple[str, str], ...]] = {
    target: tuple(
        (kind, name) for kind, relations in KINDS.items() for name, leads in relations.items() if leads == target
    )
    for target in sorted({target for relations in KINDS.values() for target in relations.values()})
}
"""The (kind of subject, relation) pairs that lead to each kind of entity."""


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
        kind, chain = draw_chain(rng, hops)
        subject = rng.choice(world.entities[kind])
        met = world.follow(subject, chain)
        if len({subject, *met}) == hops + 1:
            break
    phrase = subject
    for relation in chain[:-1]:
        phrase = rng.choice(NOUNS[relation]).format(s=phrase)
    text = rng.choice(ASKS[chain[-1]]).format(s=phrase)
    return Question(text=text, subject=subject, chain=chain, met=tuple(met))


def draw_chain(rng: random.Random, hops: int) -> tuple[str, tuple[str, ...]]:
    """A kind of subject and a chain of relations from it: `("work", ("author", "birthplace"))` has two hops.

    What the first hop leads to is a person, a city, a company or a country equally often: there are many more chains
    through people, and a model trained on them alone could read nothing else.
    """
    target = rng.choice(tuple(LEADING_TO))
    kind, relation = rng.choice(LEADING_TO[target])
    chain = [relation]
    while len(chain) < hops:
        chain.append(rng.choice(tuple(KINDS[target])))
        target = KINDS[target][chain[-1]]
    return kind, tuple(chain)
