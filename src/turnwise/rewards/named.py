"""Rewards by name, for recipes: `{format_gated_exact_match: 1.0, my_package.rewards:brevity: 0.1}`."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from turnwise.errors import ConfigError, RewardError
from turnwise.plugins import Known, PluginKind, PluginSettings, check_arguments, find_plugin, names_of
from turnwise.rewards.reward import (
    Reward,
    exact_match_reward,
    f1_reward,
    finite,
    format_gated_exact_match,
    format_gated_f1,
    format_reward,
)
from turnwise.settings import parse_settings
from turnwise.spelling import suggest
from turnwise.types import Json

NAMED: Mapping[str, Reward] = {
    one.name: one for one in (exact_match_reward, f1_reward, format_reward, format_gated_exact_match, format_gated_f1)
}
"""What a recipe can ask to be paid at the end of an episode."""
MADE: Known = {"judge": "turnwise.rewards.llm_judge:judge"}
"""What a recipe makes with arguments."""
REWARD = PluginKind(
    key="rewards",
    noun="reward",
    group="turnwise.rewards",
    args="args of rewards",
    contract="decorate a function of an Episode with @turnwise.reward, or return a turnwise.Reward",
)


class RewardSettings(PluginSettings):
    """A reward with arguments of its own: `{name: my_package.rewards:short, weight: 0.1, args: {most: 2}}`."""

    weight: float = 1.0


def choose_rewards(
    rewards: str | Mapping[str, float] | Sequence[str | Reward | Mapping[str, Json]],
) -> tuple[Reward, ...]:
    """Rewards by name: with weights, as a list at their own weights, or with arguments; a `Reward` stays as it is."""
    if isinstance(rewards, Mapping):
        return tuple(_find(name).weighted(finite(f"weight of {name}", weight)) for name, weight in rewards.items())
    return tuple(map(_choose, [rewards] if isinstance(rewards, str) else rewards))


def _choose(one: str | Reward | Mapping[str, Json]) -> Reward:
    if isinstance(one, Mapping):
        settings = parse_settings(RewardSettings, one, source="rewards")
        return _find(settings.name, settings.args).weighted(settings.weight)
    return _find(one) if isinstance(one, str) else one


def _find(name: str, args: Mapping[str, JsonValue] | None = None) -> Reward:
    """A named reward, or what a function that returns one makes of `args`."""
    if name not in NAMED and ":" not in name and name not in names_of(REWARD, MADE):
        there = [*NAMED, *names_of(REWARD, MADE)]
        raise RewardError(f"there is no reward '{name}'{suggest(name, there)}; there are: {', '.join(there)}")
    found = NAMED.get(name) or find_plugin(
        REWARD, name, MADE, lambda value: isinstance(value, Reward) or callable(value)
    )
    if isinstance(found, Reward):
        if args:
            raise ConfigError(f"rewards: {name} takes no args")
        return found
    assert callable(found), "nothing else is found"
    made = found(**check_arguments(REWARD, name, found, args or {}))
    if not isinstance(made, Reward):
        raise ConfigError(f"rewards: '{name}' made {type(made).__name__}, not a reward; {REWARD.contract}")
    return made
