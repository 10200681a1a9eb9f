"""Whether rewards tell a good episode from a bad one: channels that pay, differ, and depend on what the agent did.

Invariant: an untrained policy that earns nothing is no fault; so a channel is judged by several kinds of agents, the
environment's expert among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from turnwise.checks.diagnosis import Diagnosis
from turnwise.types import StopReason, Trajectory

_EQUAL = 1e-9
_MIN_EPISODES = 4
_MANY_STEPS = 10
"""Steps after which a channel that has paid nothing is not merely hard to earn."""


def check_rewards(by_agent: Mapping[str, Sequence[Trajectory]], *, has_expert: bool) -> list[Diagnosis]:
    """Diagnoses of the rewards that different agents earned on the same tasks."""
    played = {name: [t for t in some if t.stop is not StopReason.ENV_FAILED] for name, some in by_agent.items()}
    everyone = [t for some in played.values() for t in some]
    if sum(bool(some) for some in played.values()) < 2 or len(everyone) < _MIN_EPISODES:
        return []
    agents = " and ".join(name for name, some in played.items() if some)
    totals = [t.reward for t in everyone]
    if _constant(totals) and has_expert:
        return [
            Diagnosis(
                kind="reward_constant",
                cause=f"every episode earns the same, of {agents} alike",
                advice="the reward does not look at what the agent did: check it with `turnwise play`",
                evidence={"reward": totals[0], "episodes": float(len(totals))},
            )
        ]
    found = _check_actions(played, agents) if has_expert else []
    for channel in sorted({name for t in everyone for name in t.rewards}):
        paid = [t.rewards.get(channel, 0.0) for t in everyone]
        if has_expert and not any(paid):
            found.append(never_paid(channel, f"to {agents}", float(len(paid))))
        elif has_expert and _constant(paid) and len({name for t in everyone for name in t.rewards}) > 1:
            found.append(
                Diagnosis(
                    kind="channel_constant",
                    cause=f"reward '{channel}' pays every episode the same",
                    advice="it teaches nothing and shifts every return: mend it, or leave it out",
                    evidence={"paid": paid[0], "episodes": float(len(paid))},
                    severity="sign",
                )
            )
    return found


def check_channels(means: Mapping[str, Sequence[float]], *, steps: int) -> list[Diagnosis]:
    """Diagnoses by the mean reward of each channel in every training step of a run."""
    found = []
    for name, values in sorted(means.items()):
        if steps >= 2 and len(values) and not any(values):
            once = never_paid(name, "in this run", float(steps), unit="steps")
            found.append(once if steps >= _MANY_STEPS else replace(once, severity="sign"))
    return found


def never_paid(channel: str, where: str, count: float, unit: str = "episodes") -> Diagnosis:
    """The diagnosis of a channel that pays nothing."""
    return Diagnosis(
        kind="channel_never_paid",
        cause=f"reward '{channel}' was never paid {where}",
        advice="its condition never holds: check it with `turnwise play`, or leave it out",
        evidence={unit: count},
    )


def _check_actions(played: Mapping[str, Sequence[Trajectory]], agents: str) -> list[Diagnosis]:
    """By task, over the agents that played it."""
    by_task: dict[str, dict[str, list[float]]] = {}
    for name, some in played.items():
        for t in some:
            by_task.setdefault(t.task.id, {}).setdefault(name, []).append(t.reward)
    shared = [earned for earned in by_task.values() if len(earned) > 1]
    flat = [[one for own in earned.values() for one in own] for earned in shared]
    if len(flat) < 2 or not all(map(_constant, flat)):
        return []
    return [
        Diagnosis(
            kind="reward_ignores_actions",
            cause=f"on every task {agents} earn the same: the reward depends on the task alone",
            advice="groups have no variance by it: score what the agent did, not the task",
            evidence={"tasks": float(len(flat)), "episodes": float(sum(map(len, flat)))},
        )
    ]


def _constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _EQUAL * max(1.0, *map(abs, values))
