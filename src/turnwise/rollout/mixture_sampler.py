"""Which environments of a mixture a step plays, and which tasks of each.

Invariant: each group goes to the environment that its shares so far owe most, so none is ever a whole group ahead;
what is drawn follows from the seed, the draws before and the success seen, all of it in `state_dict`.

    share of e  ∝  weight of e × f(p of e)      p: the moving average of its success in training

    fixed        f = 1
    curriculum   f = .1 + .9 × 4 p (1 − p)      most to what is solved half of the time
    hard         f = .1 + .9 × (1 − p)          most to what is seldom solved

An environment that was not played yet, or that reports no success, has f = 1. One with `opens_after` has no share until
the environments it waits for have reached their rates; from then on it stays open.
"""

import math
from collections.abc import Mapping, Sequence

from turnwise.envs.mixture import EntryOptions, MixtureRule
from turnwise.rollout.task_sampler import TaskSampler
from turnwise.types import Group, StopReason, Task

_NEWEST_WEIGHT = 0.2
"""The weight of a step's success in the moving average: a step plays few groups of each environment."""
_FLOOR = 0.1
"""The least part of its weight that an environment keeps, so that what is solved is not forgotten."""


def share_out(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole parts of a total in proportion to weights, what is left going to the largest remainders."""
    exact = {name: total * weight / math.fsum(weights.values()) for name, weight in weights.items()}
    parts = {name: math.floor(part) for name, part in exact.items()}
    largest_first = sorted(parts, key=lambda name: parts[name] - exact[name])
    for name in largest_first[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


class MixtureSampler:
    """Draws tasks of several environments, each through its own task sampler."""

    def __init__(
        self, samplers: Mapping[str, TaskSampler], entries: Mapping[str, EntryOptions], *, rule: MixtureRule
    ) -> None:
        self._samplers, self._entries, self._rule = dict(samplers), entries, rule
        self._rates: dict[str, float] = {}
        """By environment: the moving average of its success."""
        self._owed = dict.fromkeys(self._samplers, 0.0)
        """By environment: the groups it should have had by its shares so far, less those it had."""
        self._opened = {name for name in self._samplers if not entries[name].opens_after}

    @property
    def shares(self) -> dict[str, float]:
        """The share of each environment in the next draw; they sum to 1."""
        wanted = {name: self._entries[name].weight * self._factor(name) for name in self._samplers}
        total = sum(wanted[name] for name in self._samplers if name in self._opened)
        return {name: wanted[name] / total if name in self._opened else 0.0 for name in self._samplers}

    def draw(self, count: int) -> list[int]:
        """The places of the next `count` tasks, environment by environment."""
        shares, counts = self.shares, dict.fromkeys(self._samplers, 0)
        for _ in range(count):
            for name, share in shares.items():
                self._owed[name] += share
            open_ones = [name for name in self._samplers if name in self._opened]
            chosen = max(open_ones, key=lambda name: self._owed[name])  # the first of equals
            self._owed[chosen] -= 1.0
            counts[chosen] += 1
        return [
            self._offset(name) + place
            for name, sampler in self._samplers.items()
            if counts[name]
            for place in sampler.draw(counts[name])
        ]

    def task(self, place: int) -> Task:
        name, own = self._locate(place)
        return self._samplers[name].task(own)

    def learn(self, places: Sequence[int], groups: Sequence[Group]) -> None:
        """Updates the success of every environment that was played, and of its tasks."""
        located = [self._locate(place) for place in places]
        for name, sampler in self._samplers.items():
            mine = [(own, group) for (env, own), group in zip(located, groups, strict=True) if env == name]
            sampler.learn([own for own, _ in mine], [group for _, group in mine])
            self._learn_rate(name, [group for _, group in mine])
        for name in self._samplers:
            awaited = self._entries[name].opens_after
            if all(self._rates.get(other, 0.0) >= rate for other, rate in awaited.items()):
                self._opened.add(name)

    def metrics(self) -> dict[str, float]:
        """`{"rollout/env=bandit/share": .25, "rollout/env=bandit/success_average": .8, ...}`."""
        shares = {f"rollout/env={name}/share": share for name, share in self.shares.items()}
        return shares | {f"rollout/env={name}/success_average": rate for name, rate in self._rates.items()}

    def state_dict(self) -> dict[str, object]:
        return {
            "samplers": {name: sampler.state_dict() for name, sampler in self._samplers.items()},
            "rates": dict(self._rates),
            "owed": dict(self._owed),
            "opened": sorted(self._opened),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        samplers, rates, owed, opened = state["samplers"], state["rates"], state["owed"], state["opened"]
        assert isinstance(samplers, dict)
        assert isinstance(rates, dict)
        assert isinstance(owed, dict)
        assert isinstance(opened, list)
        for name, sampler in self._samplers.items():
            sampler.load_state_dict(samplers[name])
        self._rates, self._owed, self._opened = dict(rates), dict(owed), set(opened)

    def _factor(self, name: str) -> float:
        rate = self._rates.get(name)
        if self._rule == "fixed" or rate is None:
            return 1.0
        return _FLOOR + (1 - _FLOOR) * (4 * rate * (1 - rate) if self._rule == "curriculum" else 1 - rate)

    def _learn_rate(self, name: str, groups: Sequence[Group]) -> None:
        played = [t for group in groups for t in group.trajectories if t.stop is not StopReason.ENV_FAILED]
        if not played or (name not in self._rates and not any("success" in t.metrics for t in played)):
            return
        rate = sum(trajectory.success for trajectory in played) / len(played)
        self._rates[name] = _NEWEST_WEIGHT * rate + (1 - _NEWEST_WEIGHT) * self._rates.get(name, rate)

    def _offset(self, name: str) -> int:
        """Places count through the environments' tasks, one after the other."""
        before = list(self._samplers)[: list(self._samplers).index(name)]
        return sum(len(self._samplers[one]) for one in before)

    def _locate(self, place: int) -> tuple[str, int]:
        for name, sampler in self._samplers.items():
            if place < len(sampler):
                return name, place
            place -= len(sampler)
        raise IndexError(place)
