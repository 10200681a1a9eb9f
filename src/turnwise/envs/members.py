"""What a subclass of `ToolEnv` brings along: its `@tool` and `@reward` methods, and channels that must not clash."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TypeVar

from turnwise.envs.base import Env
from turnwise.errors import EnvError, RewardError
from turnwise.rewards import Reward, finite

M = TypeVar("M")

_METRICS = ("success", "tool_calls", "tool_errors")


def find_members(cls: type, kind: type[M], reserved: type) -> tuple[M, ...]:
    """The attributes of a class that are of a kind, unbound, in order of definition, those of its bases first.

    One that a subclass sets to None is left out; one that it overrides by anything else of another kind is an error,
    and so is one in place of what `reserved` has under its name.
    """
    names = {name: None for base in reversed(cls.__mro__) for name in vars(base)}
    for name in names:
        _check_override(cls, name, kind)
    members = {name: inspect.getattr_static(cls, name, None) for name in names}
    found = {name: member for name, member in members.items() if isinstance(member, kind)}
    for name in found:
        if hasattr(reserved, name):
            noun = kind.__name__.lower()
            raise EnvError(
                f"{cls.__name__}.{name} is a {noun}, but every environment has a '{name}' of its own: rename the "
                f"method and put @{noun}(name='{name}') above it"
            )
    return tuple(found.values())


def _check_override(cls: type, name: str, kind: type) -> None:
    """Refuses a method that lost its decorator: the reward or tool of the base class would silently be gone."""
    first, *others = [base for base in cls.__mro__ if name in vars(base)]
    if vars(first)[name] is None or isinstance(vars(first)[name], kind):
        return
    for base in others:
        if vars(base)[name] is None:
            return
        if isinstance(vars(base)[name], kind):
            noun = kind.__name__.lower()
            raise EnvError(
                f"{first.__name__}.{name} overrides a {noun} of {base.__name__}: put @{noun} above it, or set "
                f"{name} = None to leave it out"
            )


def check_channels(given: Sequence[Reward], own: Sequence[Reward], process: Mapping[str, float]) -> None:
    """Refuses rewards that are none, that could never see their episode's state, or that share a name."""
    if not given and not own and not process:
        raise RewardError(
            "an environment that pays nothing teaches nothing; write an @reward method, or pass rewards=[...] or "
            "process={...}"
        )
    for reward in given:
        _check_given(reward)
    seen: set[str] = set()
    for reward in (*given, *own):
        if reward.name in seen:
            raise RewardError(f"two rewards are named '{reward.name}'; rename one with @reward(name=...)")
        if reward.name in process:
            raise RewardError(f"'{reward.name}' names both a reward and a process channel; rename one of them")
        if reward.name in _METRICS:
            raise RewardError(f"a reward cannot be named '{reward.name}', which is a metric; choose another name")
        seen.add(reward.name)
    for channel, weight in process.items():
        finite(f"weight of process channel {channel}", weight)


def _check_given(reward: object) -> None:
    if not isinstance(reward, Reward):
        raise RewardError(f"{reward!r} is not a reward; put @reward above the function")
    if reward.unbound:
        raise RewardError(
            f"reward '{reward.name}' is a method, which its class pays by itself; leave it out of rewards"
        )
    # Episodes run on copies: a method of the environment that is being made would look at state that never changes.
    if isinstance(_owner(reward.function), Env):
        raise RewardError(
            f"reward '{reward.name}' is bound to the environment that episodes are copied from, not to an episode's "
            "own; write it as an @reward method, or take the environment from episode.env"
        )


def _owner(function: object) -> object:
    """The object whose method this is, through `functools.partial`; None where it is no method."""
    while isinstance(function, functools.partial):
        if function.args and isinstance(function.args[0], Env):
            return function.args[0]
        function = function.func
    return getattr(function, "__self__", None)
