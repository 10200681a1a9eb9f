"""The environments that come with the package, and those that a recipe names as `module:Class` or `file.py:Class`."""

import dataclasses
import inspect
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from pydantic import Field, JsonValue

from turnwise.envs.base import Env
from turnwise.envs.chaos import ChaosSettings, with_chaos
from turnwise.envs.task_files import TaskSettings, tasks_of
from turnwise.errors import ConfigError
from turnwise.plugins import PluginKind, PluginSettings, make_plugin, name_object

BUILT_IN = {
    "encyclopedia": "turnwise.envs.encyclopedia.env:Encyclopedia",
    "search_qa": "turnwise.envs.qa.env:SearchQA",
    "bandit": "turnwise.envs.games.bandit:Bandit",
    "frozen_lake": "turnwise.envs.games.frozen_lake:FrozenLake",
    "sokoban": "turnwise.envs.games.sokoban.env:Sokoban",
    "countdown": "turnwise.envs.games.countdown:Countdown",
    "gymnasium": "turnwise.envs.adapters.gymnasium:GymnasiumGame",
    "mcp": "turnwise.envs.adapters.mcp:MCPEnv",
    "reasoning_gym": "turnwise.envs.adapters.reasoning_gym:ReasoningGym",
    "textworld": "turnwise.envs.adapters.textworld:TextWorld",
    "alfworld": "turnwise.envs.adapters.alfworld:AlfWorld",
    "scienceworld": "turnwise.envs.adapters.scienceworld:ScienceWorld",
    "textarena": "turnwise.envs.adapters.textarena:TextArena",
    "bfcl": "turnwise.envs.adapters.bfcl:Bfcl",
    "openenv": "turnwise.envs.adapters.openenv:OpenEnv",
    "verifiers": "turnwise.gateway.verifiers:VerifiersEnv",
    "program": "turnwise.gateway.program:AgentProgram",
}


ENV = PluginKind(
    key="env.name",
    noun="environment",
    group="turnwise.envs",
    args="env.args",
    contract="derive it from turnwise.Env",
)


class EnvSettings(PluginSettings):
    """Which environment, and the arguments of its constructor."""

    tasks: TaskSettings | None = None
    """Tasks from data of your own, in place of the environment's: `{train: train.jsonl, test: 0.1}`."""
    workers: int = Field(default=0, ge=0)
    """Processes that episodes run in, each with an environment of its own: code that hangs, crashes or never yields
    costs its episode and nothing else. 0: in the trainer's process. The figures are the same."""
    max_deaths: int = Field(default=20, ge=0)
    """Workers that may end by themselves without an episode finished in between; more end the run."""
    chaos: ChaosSettings | None = None
    """Faults planted into the episodes of training, to see that a run survives them."""
    unrecorded: dict[str, str] = Field(default_factory=dict)
    """Arguments that an environment given in Python had and a config cannot hold; written by a run, never by hand."""

    def unread(self) -> Mapping[str, str]:
        return {} if self.workers else {"max_deaths": "workers"}


def make_env(settings: EnvSettings) -> Env:
    """The environment that the settings name, ready to spawn episodes."""
    if settings.unrecorded:
        name, value = next(iter(settings.unrecorded.items()))
        made = settings.name.rpartition(":")[2]
        raise ConfigError(
            f"env: {made} was made in Python with an argument that a config cannot hold ({name}={value}): pass it "
            f"again: turnwise.evaluate(run=..., env={made}(...))"
        )
    env = make_plugin(ENV, settings, BUILT_IN, Env)  # type: ignore[type-abstract]  # a base, not to be made
    if settings.tasks is not None:
        # On the instance: every copy that `spawn` makes has it, and no class is asked to know of files.
        object.__setattr__(env, "tasks", tasks_of(settings.tasks))
    return with_chaos(env, settings.chaos)


def describe_env(env: Env) -> EnvSettings:
    """The settings that make an environment again: its class by name, and the arguments it was made with."""
    workers, env = env.workers, env.prototype
    signature = inspect.signature(type(env))
    given = _arguments(env, signature)
    plain = {name: _plain(value) for name, value in given.items()}
    lost = {name for name, value in given.items() if plain[name] is None and value is not None}
    lost |= {one.name for one in signature.parameters.values() if one.kind is one.VAR_POSITIONAL} & set(given)
    return EnvSettings(
        name=name_object(type(env)),
        workers=workers,
        args={name: value for name, value in plain.items() if name not in lost},
        unrecorded={name: _show(given[name]) for name in given if name in lost},
    )


def _arguments(env: Env, signature: inspect.Signature) -> dict[str, object]:
    """What the constructor was given, by name."""
    if env._made_with is None:  # there is none, or it is a dataclass's, which is written after the class
        if not dataclasses.is_dataclass(env):
            return {}
        return {field.name: getattr(env, field.name) for field in dataclasses.fields(env) if field.init}
    args, kwargs = env._made_with
    bound = signature.bind_partial(*args, **kwargs)
    given: dict[str, object] = {}
    for parameter in signature.parameters.values():
        if parameter.name in bound.arguments:
            value: object = bound.arguments[parameter.name]
            further = parameter.kind is parameter.VAR_KEYWORD  # **options are arguments by themselves
            given |= value if further and isinstance(value, dict) else {parameter.name: value}
    return given


def _plain(value: object) -> JsonValue:
    """An argument as JSON's types, as a recipe would have it; None where it has no such form."""
    try:
        plain: JsonValue = json.loads(json.dumps(value, default=_plain_leaf, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None
    return plain


def _plain_leaf(value: object) -> str | int | float:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum) and isinstance(value.value, str | int | float):
        return value.value
    raise TypeError(f"{value!r} is not plain data")


def _show(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
