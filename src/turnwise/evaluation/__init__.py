"""Held-out success of any agent, with confidence intervals."""

from turnwise.evaluation.evaluate import Evaluation, Scores, Slice, evaluate
from turnwise.evaluation.intervals import clustered_interval, pass_at_k, wilson_interval
from turnwise.evaluation.settings import EvaluateSettings

__all__ = [
    "EvaluateSettings",
    "Evaluation",
    "Scores",
    "Slice",
    "clustered_interval",
    "evaluate",
    "pass_at_k",
    "wilson_interval",
]
