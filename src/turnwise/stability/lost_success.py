"""Success that is lost, in a run that had some; or the signal, where success is rare: no group whose rewards differ.

Invariant: no healthy level is needed, so it is seen before the monitor is calibrated, too: the first step, which the
cold start or the untrained model sampled, is a level that can be lost. Groups are counted, not episodes, which share
their task; their number excludes chance, so a run that seldom succeeds raises nothing.
"""

import math
from collections.abc import Mapping

from turnwise.stability.signal import RewardSignal

EXPONENT = 10.0
"""Chance withholds successes with a probability of e to the minus this."""
SUSPICION = 3.0
"""The same for a step whose checkpoint is not trusted: one in twenty."""
KEPT = 0.5
"""Success and the deviation of rewards below this share of their levels so far count as lost."""
GRACE = 8
"""Steps in which a run whose rewards still differ, and which may recover by itself, is left alone."""
MIN_GROUPS = 8
"""Groups that a level must be known from."""


class LostSuccess:
    """`lost.add(signal, reward_std)` after every step; evidence once chance is excluded."""

    def __init__(self) -> None:
        self._successes = 0.0
        """In groups: a group of which half succeeds is half a success."""
        self._groups = 0.0
        self._best_successes = 0.0
        """Of the first steps, as many as prove the highest level: a fall by degrees must not become the level."""
        self._best_groups = 0.0
        self._deviation = 0.0
        """Sum over these groups of the standard deviation of their rewards."""
        self._lost_steps = 0
        """The newest steps, if success was low in each."""
        self._lost_groups = 0.0
        self._lost_successes = 0.0

    @property
    def suspected(self) -> bool:
        """Success is low in the newest steps, hardly by chance, however rewards differ."""
        return self._exponent >= SUSPICION

    @property
    def _exponent(self) -> float:
        proven = _proven_rate(self._best_successes, self._best_groups)
        return _poisson_exponent(self._lost_successes, proven * self._lost_groups)

    def add(self, signal: RewardSignal, reward_std: float) -> dict[str, tuple[float, float]]:
        if signal.success is None or not signal.group_size:
            return {}
        groups = signal.episodes / signal.group_size
        rate = self._best_successes / self._best_groups if self._best_groups else 0.0
        if self._groups < MIN_GROUPS or signal.success >= KEPT * rate:
            self._successes += signal.success * groups
            self._groups += groups
            self._deviation += reward_std * groups
            self._raise_level()
            self.forget_recent()
            return {}
        self._lost_steps += 1
        self._lost_groups += groups
        self._lost_successes += signal.success * groups
        may_recover = reward_std > 0 and reward_std >= KEPT * self._deviation / self._groups
        if may_recover and self._lost_steps <= GRACE:
            return {}
        lost = self._exponent >= EXPONENT
        return {"success": (self._lost_successes / self._lost_groups, rate)} if lost else {}

    def _raise_level(self) -> None:
        best = _proven_rate(self._best_successes, self._best_groups)
        if self._groups >= MIN_GROUPS and _proven_rate(self._successes, self._groups) >= best:
            self._best_successes, self._best_groups = self._successes, self._groups

    def forget_recent(self) -> None:
        """After a change of algorithm settings: what came of those before does not count against it."""
        self._lost_steps, self._lost_groups, self._lost_successes = 0, 0.0, 0.0

    def state_dict(self) -> dict[str, float]:
        return {
            "successes": self._successes,
            "groups": self._groups,
            "best_successes": self._best_successes,
            "best_groups": self._best_groups,
            "deviation": self._deviation,
            "lost_steps": self._lost_steps,
            "lost_groups": self._lost_groups,
            "lost_successes": self._lost_successes,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        if "lost_steps" not in state:  # a checkpoint that is older than these counts: they begin anew
            return
        self._successes, self._groups, self._deviation = state["successes"], state["groups"], state["deviation"]
        self._best_successes = state.get("best_successes", self._successes)  # a checkpoint may be older than these
        self._best_groups = state.get("best_groups", self._groups)
        self._lost_steps, self._lost_groups = int(state["lost_steps"]), state["lost_groups"]
        self._lost_successes = state["lost_successes"]


class LostSignal:
    """Of a run whose groups differed, none does, at a lower reward than before; evidence once chance is excluded.
    Nothing is learnt from such groups, so the run does not recover by itself."""

    def __init__(self) -> None:
        self._varying = 0.0
        """Groups whose rewards differed."""
        self._groups = 0.0
        self._reward = 0.0
        """Sum over all groups that were counted."""
        self._lost_groups = 0.0

    @property
    def suspected(self) -> bool:
        """As `LostSuccess.suspected`."""
        return self._expected >= SUSPICION

    @property
    def _expected(self) -> float:
        """Groups that would have differed by now."""
        return self._varying / self._groups * self._lost_groups if self._groups else 0.0

    def add(self, signal: RewardSignal, reward: float, zero_variance: float) -> dict[str, tuple[float, float]]:
        if not signal.group_size:
            return {}
        groups = signal.episodes / signal.group_size
        rate = self._varying / self._groups if self._groups else 0.0
        level = self._reward / self._groups if self._groups else 0.0
        if rate == 0.0 or signal.varies_in_groups or reward >= level:
            self._varying += (1 - zero_variance) * groups
            self._groups += groups
            self._reward += reward * groups
            self.forget_recent()
            return {}
        self._lost_groups += groups
        if self._expected < EXPONENT:
            return {}
        return {"reward": (reward, level), "zero_variance": (zero_variance, 1 - rate)}

    def forget_recent(self) -> None:
        """As `LostSuccess.forget_recent`."""
        self._lost_groups = 0.0

    def state_dict(self) -> dict[str, float]:
        return {
            "varying": self._varying,
            "groups": self._groups,
            "reward": self._reward,
            "lost_groups": self._lost_groups,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._varying, self._groups = state["varying"], state["groups"]
        self._reward, self._lost_groups = state["reward"], state["lost_groups"]


def _proven_rate(successes: float, groups: float) -> float:
    """One standard error below the mean of so many groups, so that the luck of a few is no level."""
    return max(0.0, successes - math.sqrt(successes)) / groups if groups else 0.0


def _poisson_exponent(seen: float, expected: float) -> float:
    """Of the probability that so few are seen, by Chernoff's bound: 10 expected and none seen are 10."""
    if seen >= expected:
        return 0.0
    return expected - seen + (seen * math.log(seen / expected) if seen else 0.0)
