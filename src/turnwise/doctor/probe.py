"""A short probe of a recipe: a few groups and two updates, by the run's own parts, on weights that are thrown away.

Invariant: it samples, lays out and learns by the code that trains; only sizes are smaller. Where no group of untrained
weights varies, members get probe rewards, so that an update has a gradient to check.
"""

import time
from dataclasses import dataclass, replace
from functools import partial

from turnwise.config import Config
from turnwise.learner.learner import Learner
from turnwise.learner.update import Update
from turnwise.models.settings import LARGE
from turnwise.rollout import RolloutCollector
from turnwise.rollout.summary import reward_std
from turnwise.stability import FilterSettings, select
from turnwise.training.build import Components
from turnwise.types import Group, Trajectory

_GROUPS, _MEMBERS = 4, 6
"""The most that is sampled for one of the probe's steps."""
_FEW_GROUPS, _FEW_MEMBERS = 2, 2
"""Of a large model on a CPU, which needs minutes for each of those steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStep:
    """One step of the probe."""

    groups: tuple[Group, ...]
    """As they were played."""
    trained: tuple[Group, ...]
    """As they were trained on: with probe rewards where their own do not vary."""
    update: Update
    rollout_seconds: float
    update_seconds: float

    @property
    def tokens(self) -> int:
        """Of all rows that were trained on."""
        return sum(len(turn.context_ids) + len(turn.action_ids) for t in self.trajectories for turn in t.turns)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]


class Probe:
    """`probe = Probe(config, parts)`, then `collect`, `update` once or twice."""

    def __init__(self, config: Config, parts: Components) -> None:
        rollout = config.rollout
        large = sum(p.numel() for p in parts.loaded.model.parameters()) >= LARGE
        slow = large and parts.loaded.device.type == "cpu"
        groups, members = (_FEW_GROUPS, _FEW_MEMBERS) if slow else (_GROUPS, _MEMBERS)
        small = {
            "groups_per_step": min(rollout.groups_per_step, groups),
            "group_size": min(rollout.group_size, members),
        }
        self._settings = rollout.model_copy(update=small)
        self._parts = parts
        self._collector = RolloutCollector(
            parts.policy(self._settings),
            parts.env,
            parts.train_tasks,
            self._settings,
            seed=config.seed,
            ledger=parts.ledger,
        )
        critic = config.learner.critic.model_copy(update={"warmup": 0})
        self.learner = Learner(
            parts.loaded.model,
            settings=config.learner.model_copy(update={"critic": critic, "compile": False, "shard": False}),
            credit=config.credit,
            loss=config.loss,
            temperature=rollout.temperature,
            total_steps=max(2, config.steps),
            device=parts.loaded.device,
            autocast=parts.autocast,
            ledger=parts.ledger,
        )

    @property
    def episodes(self) -> int:
        """Per step of the probe."""
        return self._settings.groups_per_step * self._settings.group_size

    async def collect(self, step: int) -> tuple[tuple[Group, ...], float]:
        """The groups of step 0, 1, ... and how long they took."""
        await self._parts.engine.load(self._parts.loaded.model.state_dict(), step)
        keep = FilterSettings(rule="none")
        began = time.monotonic()
        batch = await self._collector.collect(step, partial(select, settings=keep), refill=0, progress=lambda *_: None)
        return batch.groups, time.monotonic() - began

    def update(self, step: int, groups: tuple[Group, ...], rollout_seconds: float) -> ProbeStep:
        trained = groups if any(reward_std(group) for group in groups) else tuple(map(_with_probe_rewards, groups))
        began = time.monotonic()
        update = self.learner.update(trained, seed=step)
        seconds = time.monotonic() - began
        return ProbeStep(
            groups=groups,
            trained=trained,
            update=update,
            rollout_seconds=rollout_seconds,
            update_seconds=seconds,
        )


def _with_probe_rewards(group: Group) -> Group:
    """Every other member earns 1 with its last turn."""
    members = []
    for place, trajectory in enumerate(group.trajectories):
        if not trajectory.turns:
            members.append(trajectory)
            continue
        *before, last = trajectory.turns
        paid = replace(last, rewards={"probe": float(place % 2)})
        members.append(replace(trajectory, turns=(*(replace(turn, rewards={}) for turn in before), paid)))
    return Group(task=group.task, trajectories=tuple(members))
