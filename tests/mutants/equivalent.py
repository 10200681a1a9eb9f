"""Survivors that no test can notice, each with its reason: the mutated code computes the same, or only more slowly."""

from collections.abc import Mapping

REASONS: Mapping[tuple[str, str, str], str] = {}
"""By file, the line as it is and the line as mutated."""
