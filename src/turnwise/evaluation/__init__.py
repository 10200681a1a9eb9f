"""How good is it? Episodes on held-out tasks, with intervals that say how sure we are."""

from turnwise.evaluation.evaluate import Evaluation, Figures, Part, evaluate
from turnwise.evaluation.intervals import bootstrap_interval, pass_at_k, wilson_interval
from turnwise.evaluation.settings import EvaluateSettings

__all__ = [
    "EvaluateSettings",
    "Evaluation",
    "Figures",
    "Part",
    "bootstrap_interval",
    "evaluate",
    "pass_at_k",
    "wilson_interval",
]
