"""Whether the members of a group differ: without a difference there is nothing to learn from."""

from collections.abc import Sequence

from turnwise.checks.diagnosis import Diagnosis
from turnwise.types import Group, StopReason

_MIN_NATS = 30.0
"""Surprisal, in all, of the episodes that repeat another: that they do so by chance has the probability e^-30."""


def check_identical(groups: Sequence[Group]) -> list[Diagnosis]:
    """A diagnosis where all members of every group sampled the same tokens, though these were far from certain."""
    checked, nats = 0, 0.0
    for group in groups:
        members = [t for t in group.trajectories if t.stop is not StopReason.ENV_FAILED and t.turns and t.has_tokens]
        if len(members) < 2:
            continue
        first = [turn.action_ids for turn in members[0].turns]
        if any([turn.action_ids for turn in member.turns] != first for member in members[1:]):
            return []
        checked += 1
        nats -= sum(logprob for member in members[1:] for turn in member.turns for logprob in turn.logprobs)
    if checked < 2 or not nats >= _MIN_NATS:
        return []
    return [
        Diagnosis(
            kind="identical_members",
            cause="all members of a group sample the same tokens, though these were far from certain",
            advice="the engine ignores the seed of a turn, or samples greedily: pass Sampling.seed and temperature on",
            evidence={"groups": float(checked), "surprisal in nats": nats},
        )
    ]


def check_variance(
    *, zero_variance: Sequence[float], success: Sequence[float | None], compares_groups: bool
) -> list[Diagnosis]:
    """A diagnosis where, step after step, the members of (nearly) all groups earn the same, and the task is not solved.

    One value per training step: the share of groups without variance, and the success rate.
    """
    known = [one for one in success if one is not None]
    level = sum(known) / len(known) if known else 0.0
    if not compares_groups or not zero_variance or min(zero_variance) < 0.95 or level > 0.9:
        return []
    return [
        Diagnosis(
            kind="no_variance",
            cause="the members of nearly every group earn the same, so there is no advantage to learn from",
            advice="take tasks that are solved sometimes, add demonstrations (sft), raise rollout.group_size, "
            "or pay for partial success",
            evidence={
                "least share of groups without variance": min(zero_variance),
                "mean success": level,
                "steps": float(len(zero_variance)),
            },
        )
    ]
