"""Whether turns were sampled by the weights that the trainer had loaded."""

from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis
from turnwise.types import Trajectory


def check_versions(trajectories: Sequence[Trajectory], *, oldest: int, newest: int) -> list[Diagnosis]:
    """A diagnosis where a turn carries a version of the weights that was not in the engine when it was sampled."""
    versions = [turn.version for t in trajectories for turn in t.turns]
    wrong = [version for version in versions if not oldest <= version <= newest]
    if not wrong:
        return []
    return [
        Diagnosis(
            kind="stale_version",
            cause=f"turns were sampled by version {min(wrong)} of the weights, where version {newest} was loaded",
            advice="the engine ignores Engine.load or serves an earlier version: wait for the load before sampling",
            evidence={"turns of another version": float(len(wrong)), "of": float(len(versions))},
        )
    ]
