"""Small worlds in which the right gradient is known, to hold estimators and learners against."""

from turnwise.oracle.critic import TableCritic, wrong_values
from turnwise.oracle.deck import Deck, expected_gradient, spans_the_batch
from turnwise.oracle.exact import TEMPERATURE, Oracle, consult, draw_policy
from turnwise.oracle.moments import Moments, measure
from turnwise.oracle.world import Answer, World
from turnwise.oracle.worlds import WORLDS

__all__ = [
    "TEMPERATURE",
    "WORLDS",
    "Answer",
    "Deck",
    "Moments",
    "Oracle",
    "TableCritic",
    "World",
    "consult",
    "draw_policy",
    "expected_gradient",
    "measure",
    "spans_the_batch",
    "wrong_values",
]
