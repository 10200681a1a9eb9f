"""The numbers of sampled tokens that checks compare: the sampler's logprobs, the learner's, and entropies.

Invariant: all arrays have one value per sampled token, in the same order; what was not computed is NaN.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from turnwise.types import Group, StopReason, Trajectory

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What sampler and learner say of the same tokens, under weights that should be the same. [N] each."""

    sampler: Floats
    learner: Floats
    entropy: Floats
    """Of the learner's distribution that the token was chosen from."""

    @property
    def known(self) -> "TokenScores":
        """The tokens that the learner has scored and whose numbers are finite."""
        finite = np.isfinite(self.sampler) & np.isfinite(self.learner)
        return TokenScores(sampler=self.sampler[finite], learner=self.learner[finite], entropy=self.entropy[finite])

    def __len__(self) -> int:
        return len(self.sampler)


PerTurn = Sequence[Sequence[Sequence[float]]]


def played_in(groups: Iterable[Group]) -> list[Trajectory]:
    """The trajectories that did not fail and have turns with tokens."""
    return [
        t
        for group in groups
        for t in group.trajectories
        if t.stop is not StopReason.ENV_FAILED and t.turns and t.has_tokens
    ]


def pair_scores(
    trajectories: Sequence[Trajectory], logprobs: PerTurn, entropies: PerTurn, *, version: int | None = None
) -> TokenScores:
    """Pairs the sampler's logprobs with the learner's, turn by turn; of turns sampled by `version` alone, if given.

    A trajectory that the learner left out has no turns there.
    """
    sampler: list[Sequence[float]] = []
    learner: list[Sequence[float]] = []
    entropy: list[Sequence[float]] = []
    for trajectory, scored, spread in zip(trajectories, logprobs, entropies, strict=True):
        for turn, own, width in zip(trajectory.turns, scored, spread, strict=False):
            by_version = version is None or turn.versions == ((0, version),)
            if len(own) == len(turn.logprobs) and by_version:
                sampler.append(turn.logprobs)
                learner.append(own)
                entropy.append(width)
    return TokenScores(sampler=flatten(sampler), learner=flatten(learner), entropy=flatten(entropy))


def flatten(parts: Iterable[Sequence[float]]) -> Floats:
    """All numbers end to end."""
    return np.fromiter(chain.from_iterable(parts), np.float64)
