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

    weight: float | None = None
    """Replaces the reward's own weight, and multiplies those of a rubric's functions; left out, they keep their own."""


def choose_rewards(
    rewards: str | Mapping[str, float] | Sequence[str | Reward | Mapping[str, Json]],
) -> tuple[Reward, ...]:
    """Rewards by name: with weights, as a list at their own weights, or with arguments; a `Reward` stays as it is.

    A given weight replaces a reward's own and multiplies those of a rubric's functions; without one, they keep theirs.
    """
    if isinstance(rewards, Mapping):
        given = [(name, finite(f"weight of {name}", weight)) for name, weight in rewards.items()]
        return tuple(one for name, weight in given for one in _find(name, weight=weight))
    return tuple(found for one in ([rewards] if isinstance(rewards, str) else rewards) for found in _choose(one))


def _choose(one: str | Reward | Mapping[str, Json]) -> tuple[Reward, ...]:
    if isinstance(one, Mapping):
        settings = parse_settings(RewardSettings, one, source="rewards")
        return _find(settings.name, settings.args, settings.weight)
    return _find(one) if isinstance(one, str) else (one,)


def can_reward(value: object) -> bool:
    """Whether something that a name stands for is a reward, or may make one."""
    return isinstance(value, Reward | RubricLike) or callable(value)


def _find(name: str, args: Mapping[str, JsonValue] | None = None, weight: float | None = None) -> tuple[Reward, ...]:
    """The rewards that a name stands for, at a weight if one is given; a rubric's functions keep their proportions."""
    if name not in NAMED and ":" not in name and name not in names_of(REWARD, MADE):
        there = [*NAMED, *names_of(REWARD, MADE)]
        raise RewardError(f"there is no reward '{name}'{suggest(name, there)}; there are: {', '.join(there)}")
    found = NAMED.get(name) or find_plugin(REWARD, name, MADE, can_reward)
    if isinstance(found, RubricLike):
        return from_rubric(found, weight=1.0 if weight is None else weight)
    one = _make(name, found, args or {})
    return (one if weight is None else one.weighted(weight),)


def _make(name: str, found: object, args: Mapping[str, JsonValue]) -> Reward:
    """A reward as it is, what a function that returns one makes of `args`, or what another library's stands for."""
    if isinstance(found, Reward):
        if args:
            raise ConfigError(f"rewards: {name} takes no args")
        return found
    assert callable(found), "nothing else is found"
    if library := read_signature(found):
        adapt = from_trl if library == "trl" else from_verifiers
        return adapt(found, **check_arguments(REWARD, name, adapt, args, supplied=1))  # type: ignore[arg-type]
    made = found(**check_arguments(REWARD, name, found, args))
    if not isinstance(made, Reward):
        raise ConfigError(f"rewards: '{name}' made {type(made).__name__}, not a reward; {REWARD.contract}")
    return made
