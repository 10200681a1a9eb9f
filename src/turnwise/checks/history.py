"""Whether the conversation grows at its end alone: a later turn must not read the prompt again."""

from collections.abc import Sequence

import numpy as np

from turnwise.checks.diagnosis import Diagnosis
from turnwise.types import Trajectory

_PROBE = 24
"""Tokens of the prompt that are looked for; a shorter prompt may recur by chance."""


def check_history(trajectories: Sequence[Trajectory]) -> list[Diagnosis]:
    """A diagnosis where turns that share a row read the row's prompt once more: history was rendered again."""
    seen = repeated = 0
    for trajectory in trajectories:
        probe = b""
        for turn in trajectory.turns:
            if turn.opens_row:
                probe = _bytes(turn.context_ids[:_PROBE]) if len(turn.context_ids) >= _PROBE else b""
            elif probe:
                seen += 1
                repeated += _occurs(probe, _bytes(turn.context_ids))
    if not repeated:
        return []
    return [
        Diagnosis(
            kind="history_rerendered",
            cause="later turns read the whole conversation again, after what the model had sampled",
            advice="the renderer's `extend` must return only what follows the action: new messages and the next header",
            evidence={"turns that read the prompt again": float(repeated), "of": float(seen)},
        )
    ]


def _bytes(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, np.int32).tobytes()


def _occurs(probe: bytes, ids: bytes) -> bool:
    """Whether the ids hold the probe, at a whole id."""
    place = ids.find(probe)
    while place >= 0 and place % 4:
        place = ids.find(probe, place + 1)
    return place >= 0
