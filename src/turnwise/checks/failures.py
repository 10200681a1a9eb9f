"""Whether episodes can be played: one that failed is set aside with a warning, so a step goes on without it."""

from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis
from turnwise.rollout.failures import explain_failure
from turnwise.types import StopReason, Trajectory

_MANY = 0.05
"""The share of failed episodes from which they are no hiccup of a service."""


def check_failures(trajectories: Sequence[Trajectory]) -> list[Diagnosis]:
    """A diagnosis where the environment, a tool or a reward failed in some of the episodes, with the first failure."""
    failed = [t for t in trajectories if t.stop is StopReason.ENV_FAILED]
    if not failed:
        return []
    return [
        Diagnosis(
            kind="episodes_failed",
            cause=f"episodes failed, the first in {explain_failure(failed[0])}",
            advice="mend the environment, or leave such tasks out: nothing is learnt from a failed episode",
            evidence={"failed": float(len(failed)), "of": float(len(trajectories))},
            severity="alarm" if len(failed) >= _MANY * len(trajectories) else "sign",
        )
    ]
