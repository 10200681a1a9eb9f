"""Rewards by name, for recipes: `{format_gated_exact_match: 1.0, f1: 0.1}`."""

from collections.abc import Mapping, Sequence

from turnwise.errors import RewardError
from turnwise.rewards.reward import (
    Reward,
    exact_match_reward,
    f1_reward,
    finite,
    format_gated_exact_match,
    format_gated_f1,
    format_reward,
)
from turnwise.spelling import suggest

NAMED: Mapping[str, Reward] = {
    one.name: one for one in (exact_match_reward, f1_reward, format_reward, format_gated_exact_match, format_gated_f1)
}
"""What a recipe can ask to be paid at the end of an episode."""


def choose_rewards(rewards: Mapping[str, float] | Sequence[str | Reward]) -> tuple[Reward, ...]:
    """Rewards by name, with their weights or at weight 1; those that are at hand already stay as they are."""
    if isinstance(rewards, Mapping):
        return tuple(_find(name).weighted(finite(f"weight of {name}", weight)) for name, weight in rewards.items())
    listed = [rewards] if isinstance(rewards, str) else rewards
    return tuple(_find(one) if isinstance(one, str) else one for one in listed)


def _find(name: str) -> Reward:
    if name not in NAMED:
        raise RewardError(f"there is no reward '{name}'{suggest(name, NAMED)}; there are: {', '.join(NAMED)}")
    return NAMED[name]
