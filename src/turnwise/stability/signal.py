"""Whether a step's rewards can teach anything: equal rewards give no advantage, and so no gradient.

Invariant: it is measured over all rollouts, before any filter, like every health metric.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnwise.rollout.summary import reward_std
from turnwise.types import Finish, Group, StopReason, Trajectory

_MOST = 0.8
"""From this share on, what cuts episodes short explains why rewards are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSignal:
    """`RewardSignal(varies_in_groups=False, varies=True, episodes=64, group_size=8, success=0.0, paid={...})`."""

    varies_in_groups: bool
    """Whether the rewards of any group differ."""
    varies: bool
    """Whether any two rewards of the step differ."""
    episodes: int
    """All of the step, but for those that failed."""
    group_size: int
    success: float | None
    paid: Mapping[str, bool]
    """By channel: whether anything but 0 was paid into it."""
    obstacles: tuple[str, ...] = ()
    """What keeps the policy from earning anything, whatever the rewards are."""

    def teaches(self, *, compares_groups: bool) -> bool:
        """Whether an estimator can tell good from bad by it: one that compares groups needs a difference within one."""
        return self.varies_in_groups if compares_groups else self.varies

    def causes(self, *, never_paid: Sequence[str], cold_start: bool) -> tuple[str, ...]:
        """Why it may teach nothing, likeliest first."""
        found = [*self.obstacles]
        if self.group_size == 1:
            found.append("groups have one episode each: raise rollout.group_size")
        check = "" if self.obstacles else ": check it with `turnwise play`"
        found += [f"reward '{name}' was never paid in this run{check}" for name in never_paid]
        if self.success == 0.0:
            found.append("no episode succeeds")
            if not cold_start:
                found.append("there was no cold start: give the policy demonstrations (sft), or easier tasks")
        elif self.success == 1.0:
            found.append("every episode succeeds: take harder tasks, or stop here")
        return tuple(found) or ("all episodes of a group earn the same: check the rewards with `turnwise play`",)


def measure_signal(groups: Sequence[Group]) -> RewardSignal:
    """The signal of a step, from all its groups; failed episodes are no part of it."""
    played = [t for group in groups for t in group.trajectories if t.stop is not StopReason.ENV_FAILED]
    paid: dict[str, bool] = {}
    for trajectory in played:
        for turn in trajectory.turns:
            for name, value in turn.rewards.items():
                paid[name] = paid.get(name, False) or value != 0.0
    reported = any("success" in t.metrics for t in played)
    together = Group(task=groups[0].task, trajectories=tuple(played))
    return RewardSignal(
        varies_in_groups=any(reward_std(group) for group in groups),
        varies=bool(reward_std(together)),
        episodes=len(played),
        group_size=max(len(group.trajectories) for group in groups),
        success=sum(t.success for t in played) / len(played) if reported else None,
        paid=paid,
        obstacles=tuple(_find_obstacles(played)),
    )


def _find_obstacles(played: Sequence[Trajectory]) -> Iterator[str]:
    turns = [turn for t in played for turn in t.turns]
    unread = sum(t.stop is StopReason.CONTEXT_FULL and not t.turns for t in played)
    if played and unread >= _MOST * len(played):
        yield "most prompts do not fit the context: raise rollout.context_tokens, or shorten them"
    if turns and sum(turn.finish is Finish.LENGTH for turn in turns) >= _MOST * len(turns):
        yield "most turns are cut off before they end: raise rollout.turn_tokens, or show how turns end (sft)"
    calls = [t.metrics["tool_calls"] for t in played if "tool_calls" in t.metrics]
    if turns and calls and not any(calls):
        yield "the policy calls no tool: look at what it writes (turnwise show), or show it how (sft)"
