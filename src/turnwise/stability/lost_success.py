"""Success that is gone: not one in many episodes, in a run that had some.

Invariant: no healthy level is needed, so it is seen before the monitor is calibrated, too; the number of episodes
excludes chance, so a run that seldom succeeds raises nothing.
"""

from collections.abc import Mapping

from turnwise.stability.signal import RewardSignal

EXPECTED = 10.0
"""Successes that the run's earlier rate would have brought by now; that chance withholds all of them is e⁻¹⁰."""


class LostSuccess:
    """`lost.add(signal)` after every step; evidence while success is gone and rewards within groups do not differ."""

    def __init__(self) -> None:
        self._successes = 0.0
        self._episodes = 0
        self._since = 0
        """Episodes since the last one that succeeded, or whose step could still teach."""

    def add(self, signal: RewardSignal) -> dict[str, tuple[float, float]]:
        if signal.success is None:
            return {}
        if signal.success > 0 or signal.varies_in_groups:
            self._successes += signal.success * signal.episodes
            self._episodes += signal.episodes
            self._since = 0
            return {}
        self._since += signal.episodes
        rate = self._successes / self._episodes if self._episodes else 0.0
        return {"success": (0.0, rate)} if rate * self._since >= EXPECTED else {}

    def forget_recent(self) -> None:
        """After a change of algorithm settings: what came of those before does not count against it."""
        self._since = 0

    def state_dict(self) -> dict[str, float]:
        return {"successes": self._successes, "episodes": self._episodes, "since": self._since}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._successes, self._episodes = state["successes"], int(state["episodes"])
        self._since = int(state["since"])
