"""Small worlds whose exact gradient is known, to test estimators and the learner against."""

from turnwise.oracle.critic import TableCritic, wrong_values
from turnwise.oracle.deck import Deck, expected_gradient, spans_the_batch
from turnwise.oracle.exact import TEMPERATURE, Oracle, consult, draw_policy
from turnwise.oracle.moments import Moments, measure
from turnwise.oracle.world import Transition, World
from turnwise.oracle.worlds import WORLDS

__all__ = [
    "TEMPERATURE",
    "WORLDS",
    "Deck",
    "Moments",
    "Oracle",
    "TableCritic",
    "Transition",
    "World",
    "consult",
    "draw_policy",
    "expected_gradient",
    "measure",
    "spans_the_batch",
    "wrong_values",
]
