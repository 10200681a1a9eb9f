"""Rewards by name, for recipes: `{format_gated_exact_match: 1.0, my_package.rewards:brevity: 0.1}`."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from turnwise.errors import ConfigError, RewardError
from turnwise.plugins import Known, PluginKind, PluginSettings, check_arguments, find_plugin, names_of
from turnwise.rewards.foreign import RubricLike, from_rubric, from_trl, from_verifiers, read_signature
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
        given = [(name, finite(f"weight of {name}", weight), None) for name, weight in rewards.items()]
        return tuple(one for name, weight, args in given for one in _find_weighted(name, weight, args))
    return tuple(found for one in ([rewards] if isinstance(rewards, str) else rewards) for found in _choose(one))


def _choose(one: str | Reward | Mapping[str, Json]) -> tuple[Reward, ...]:
    if isinstance(one, Mapping):
        settings = parse_settings(RewardSettings, one, source="rewards")
        return _find_weighted(settings.name, settings.weight, settings.args)
    return _find(one) if isinstance(one, str) else (one,)


def can_reward(value: object) -> bool:
    """Whether something that a name stands for is a reward, or may make one."""
    return isinstance(value, Reward | RubricLike) or callable(value)


def _find_weighted(name: str, weight: float, args: Mapping[str, JsonValue] | None) -> tuple[Reward, ...]:
    """A reward at this weight; a rubric of several keeps their proportions."""
    found = _find(name, args)
    if len(found) == 1:
        return (found[0].weighted(weight),)
    return tuple(one.weighted(weight * one.weight) for one in found)


def _find(name: str, args: Mapping[str, JsonValue] | None = None) -> tuple[Reward, ...]:
    """A named reward, what a function that returns one makes of `args`, or what another library's stands for."""
    if name not in NAMED and ":" not in name and name not in names_of(REWARD, MADE):
        there = [*NAMED, *names_of(REWARD, MADE)]
        raise RewardError(f"there is no reward '{name}'{suggest(name, there)}; there are: {', '.join(there)}")
    found = NAMED.get(name) or find_plugin(REWARD, name, MADE, can_reward)
    if isinstance(found, Reward):
        if args:
            raise ConfigError(f"rewards: {name} takes no args")
        return (found,)
    if isinstance(found, RubricLike):
        return from_rubric(found)
    assert callable(found), "nothing else is found"
    if library := read_signature(found):
        adapt = from_trl if library == "trl" else from_verifiers
        return (adapt(found, **check_arguments(REWARD, name, adapt, args or {}, supplied=1)),)  # type: ignore[arg-type]
    made = found(**check_arguments(REWARD, name, found, args or {}))
    if not isinstance(made, Reward):
        raise ConfigError(f"rewards: '{name}' made {type(made).__name__}, not a reward; {REWARD.contract}")
    return (made,)
