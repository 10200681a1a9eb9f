"""Whether the rows that the learner trains on are the turns that were played: mask, ids, logprobs and rewards.

Invariant: the expectation is built from the turns by itself, one turn after the other, not by the code that lays rows
out. Shapes: L tokens of all rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.tokens import flatten
from turnwise.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """The learner's rows end to end, [L] each."""

    ids: npt.NDArray[np.int64]
    action: npt.NDArray[np.bool_]
    logprob: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float64]


def check_accounting(trajectories: Sequence[Trajectory], rows: LaidOut) -> list[Diagnosis]:
    """Diagnoses of rows that differ from the trajectories, all of which they should hold, in order."""
    ids = np.fromiter((i for t in trajectories for turn in t.turns for i in turn.action_ids), np.int64)
    found = []
    masked = rows.ids[rows.action]
    if len(masked) != len(ids):
        found.append(
            _wrong(
                "tokens_lost",
                "the action mask selects another number of tokens than was sampled",
                {"tokens masked": float(len(masked)), "tokens sampled": float(len(ids))},
            )
        )
    elif wrong := int((masked != ids).sum()):
        found.append(
            _wrong(
                "mask_shifted",
                "the action mask selects tokens that the model did not sample",
                {"tokens that were not sampled": float(wrong), "of": float(len(ids))},
            )
        )
    else:
        logprobs = flatten(turn.logprobs for t in trajectories for turn in t.turns).astype(np.float32)
        if wrong := int((~np.isclose(rows.logprob[rows.action], logprobs, equal_nan=True)).sum()):
            found.append(
                _wrong(
                    "logprobs_misplaced",
                    "logprobs stand at other tokens than those they were recorded for",
                    {"tokens with another logprob": float(wrong), "of": float(len(ids))},
                )
            )
    paid = math.fsum(t.reward for t in trajectories)
    kept = float(rows.reward.sum())
    if not math.isclose(paid, kept, rel_tol=1e-6, abs_tol=1e-6):
        figures = {"reward paid": paid, "reward in the rows": kept}
        found.append(_wrong("rewards_lost", "rewards were lost, or counted twice, on the way to the learner", figures))
    return found


def _wrong(kind: str, cause: str, evidence: dict[str, float]) -> Diagnosis:
    advice = "results of this run are wrong: a change to `types.lay_out` or `learner.batch` broke it; undo that change"
    return Diagnosis(kind=kind, cause=cause, advice=advice, evidence=evidence)
