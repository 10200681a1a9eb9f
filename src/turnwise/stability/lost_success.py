"""Success that is lost: next to none in many groups, and hardly a reward that differs, in a run that had some.

Invariant: no healthy level is needed, so it is seen before the monitor is calibrated, too: the first step, which the
cold start or the untrained model sampled, is a level that can be lost. Groups are counted, not episodes, which share
their task; their number excludes chance, so a run that seldom succeeds raises nothing.
"""

import math
from collections.abc import Mapping

from turnwise.stability.signal import RewardSignal

EXPONENT = 10.0
"""Chance withholds successes with a probability of e to the minus this."""
KEPT = 0.5
"""Success and the deviation of rewards below this share of their levels so far begin to count as lost."""


class LostSuccess:
    """`lost.add(signal, reward_std)` after every step; evidence once chance is excluded."""

    def __init__(self) -> None:
        self._successes = 0.0
        """In groups: a group of which half succeeds is half a success."""
        self._groups = 0.0
        self._deviation = 0.0
        """Sum over these groups of the standard deviation of their rewards."""
        self._lost_groups = 0.0
        """Those of the newest steps in which success was lost."""
        self._lost_successes = 0.0

    @property
    def suspected(self) -> bool:
        """Success was lost in the last step, by chance or not."""
        return self._lost_groups > 0

    def add(self, signal: RewardSignal, reward_std: float) -> dict[str, tuple[float, float]]:
        if signal.success is None or not signal.group_size:
            return {}
        groups = signal.episodes / signal.group_size
        rate = self._successes / self._groups if self._groups else 0.0
        usual_std = self._deviation / self._groups if self._groups else 0.0
        if rate == 0.0 or signal.success >= KEPT * rate or (reward_std and reward_std >= KEPT * usual_std):
            self._successes += signal.success * groups
            self._groups += groups
            self._deviation += reward_std * groups
            self.forget_recent()
            return {}
        self._lost_groups += groups
        self._lost_successes += signal.success * groups
        exponent = _poisson_exponent(self._lost_successes, rate * self._lost_groups)
        return {"success": (self._lost_successes / self._lost_groups, rate)} if exponent >= EXPONENT else {}

    def forget_recent(self) -> None:
        """After a change of algorithm settings: what came of those before does not count against it."""
        self._lost_groups = self._lost_successes = 0.0

    def state_dict(self) -> dict[str, float]:
        return {
            "successes": self._successes,
            "groups": self._groups,
            "deviation": self._deviation,
            "lost_groups": self._lost_groups,
            "lost_successes": self._lost_successes,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        if "groups" not in state:  # a checkpoint that is older than these counts: they begin anew
            return
        self._successes, self._groups, self._deviation = state["successes"], state["groups"], state["deviation"]
        self._lost_groups, self._lost_successes = state["lost_groups"], state["lost_successes"]


def _poisson_exponent(seen: float, expected: float) -> float:
    """Of the probability that so few are seen, by Chernoff's bound: 10 expected and none seen are 10."""
    return expected - seen + (seen * math.log(seen / expected) if seen else 0.0)
