"""Metrics of a batch of episodes.

Invariant: every episode is counted: failed ones are in `rollout/failed` and in the tokens sampled and read, which they
cost like any other, and in no mean.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from turnwise.types import Finish, Group, StopReason, Trajectory


def summarise(groups: Sequence[Group]) -> dict[str, float]:
    """`{"rollout/reward": .41, "rollout/success": .38, "rollout/turns": 2.9, "rollout/stop_done": .98, ...}`.

    Of a mixture also by environment: `rollout/env=bandit/reward`.
    """
    summary = _summarise(groups)
    for name, own in by_env(groups).items():
        summary |= name_by_env(name, _summarise(own))
    return summary


def by_env(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups of each environment of a mixture, in the order they were first played; none of one environment."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        if group.task.env:
            found.setdefault(group.task.env, []).append(group)
    return found


def name_by_env(env: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """`{"rollout/env=bandit/reward": .4}` of `{"rollout/reward": .4}`."""
    split = ((name.partition("/"), value) for name, value in metrics.items())
    return {f"{area}/env={env}/{rest}": value for (area, _, rest), value in split}


def _summarise(groups: Sequence[Group]) -> dict[str, float]:
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    played = [trajectory for trajectory in everyone if trajectory.stop is not StopReason.ENV_FAILED]
    turns = [turn for trajectory in played for turn in trajectory.turns]
    summary = {
        "rollout/episodes": float(len(everyone)),
        "rollout/failed": float(len(everyone) - len(played)),
        "rollout/reward": _mean(trajectory.reward for trajectory in played),
        "rollout/success": _mean(float(trajectory.success) for trajectory in played),
        "rollout/reward_std_in_group": _mean(_reward_stds(groups)),
        "rollout/turns": _mean(float(len(trajectory.turns)) for trajectory in played),
        "rollout/action_tokens": float(sum(trajectory.action_tokens for trajectory in everyone)),
        "rollout/context_tokens": float(sum(len(turn.context_ids) for t in everyone for turn in t.turns)),
        "rollout/turns_cut": _mean(float(turn.finish is Finish.LENGTH) for turn in turns),
    }
    for reason in StopReason:
        share = _mean(float(trajectory.stop is reason) for trajectory in played)
        # A policy never quits: the curve is for agents that can.
        if reason is not StopReason.ENV_FAILED and (share or reason is not StopReason.AGENT_QUIT):
            summary[f"rollout/stop_{reason}"] = share
    rewards = {f"reward/{name}": mean for name, mean in _reward_means(played).items()}
    return summary | rewards | {f"env/{name}": mean for name, mean in metric_means(played).items()}


def metric_means(played: Sequence[Trajectory]) -> dict[str, float]:
    """Means of the environment's metrics by name, each over the episodes that have it."""
    names = sorted({name for trajectory in played for name in trajectory.metrics})
    return {name: _mean(t.metrics[name] for t in played if name in t.metrics) for name in names}


def _reward_means(played: Sequence[Trajectory]) -> dict[str, float]:
    """Means of rewards by name, over all episodes: a reward that was not paid is 0."""
    paid = [trajectory.rewards for trajectory in played]
    return {name: _mean(rewards.get(name, 0.0) for rewards in paid) for name in sorted({n for r in paid for n in r})}


def reward_std(group: Group) -> float | None:
    """The standard deviation of the rewards of a group's trajectories; None when failures left fewer than two.

    It is exactly zero for equal rewards, whatever the sums of their parts round to.
    """
    rewards = [t.reward for t in group.trajectories if t.stop is not StopReason.ENV_FAILED]
    if len(rewards) < min(2, len(group.trajectories)):
        return None
    equal = max(rewards) - min(rewards) <= 1e-9 * max(1.0, *map(abs, rewards))
    return 0.0 if equal else statistics.pstdev(rewards)


def _reward_stds(groups: Sequence[Group]) -> Iterator[float]:
    yield from (std for group in groups if (std := reward_std(group)) is not None)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
