"""Checks of a recipe, a training step or a run: pure functions from plain values to diagnoses, one module a check.

What they need is gathered elsewhere: by `training.step_checks` while a run trains, by `doctor` before and after it.
"""

from turnwise.checks.diagnosis import Diagnosis

__all__ = ["Diagnosis"]
