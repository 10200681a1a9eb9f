"""The environments that come with the package, and those that a recipe names as `module:Class` or `file.py:Class`."""

import dataclasses
import inspect
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator

from turnwise.envs.base import Env
from turnwise.envs.chaos import ChaosSettings, with_chaos
from turnwise.envs.mixture import Entry, EntryOptions, Mixture, MixtureRule, check_entries
from turnwise.envs.task_files import TaskSettings, tasks_of
from turnwise.envs.workers.settings import LocalWorkers, WorkersOn
from turnwise.errors import ConfigError, EnvError
from turnwise.plugins import PluginKind, PluginSettings, make_plugin, name_object
from turnwise.settings import Settings

BUILT_IN = {
    "encyclopedia": "turnwise.envs.encyclopedia.env:Encyclopedia",
    "search_qa": "turnwise.envs.qa.env:SearchQA",
    "bandit": "turnwise.envs.games.bandit:Bandit",
    "frozen_lake": "turnwise.envs.games.frozen_lake:FrozenLake",
    "sokoban": "turnwise.envs.games.sokoban.env:Sokoban",
    "countdown": "turnwise.envs.games.countdown:Countdown",
    "corridor": "turnwise.envs.games.corridor:Corridor",
    "gymnasium": "turnwise.envs.adapters.gymnasium:GymnasiumGame",
    "minigrid": "turnwise.envs.adapters.minigrid:MiniGridGame",
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
    workers_on: WorkersOn = LocalWorkers()
    """Where they run: beside each engine, or on other nodes: `{kind: ray, resources: {cpu_node: 0.01}}`."""
    max_deaths: int = Field(default=20, ge=0)
    """Workers that may end by themselves without an episode finished in between; more end the run."""
    chaos: ChaosSettings | None = None
    """Faults planted into the episodes of training, to see that a run survives them."""
    unrecorded: dict[str, str] = Field(default_factory=dict)
    """Arguments that an environment given in Python had and a config cannot hold; written by a run, never by hand."""

    def unread(self) -> Mapping[str, str]:
        return {} if self.workers else {"max_deaths": "workers", "workers_on": "workers"}


class EntrySettings(EntryOptions, EnvSettings):
    """One environment of a mixture: which it is, its share of the groups, and limits of its own."""


class MixtureSettings(Settings):
    """Several environments in one run, by names of your own."""

    mixture: dict[str, EntrySettings]
    """The environments: `{encyclopedia: {name: encyclopedia, weight: 2}, bandit: {name: bandit, max_turns: 1}}`."""
    sampling: MixtureRule = "fixed"
    """How success changes the environments' shares. `fixed`: the weights; `curriculum`: most to what is solved half of
    the time, weight × (.1 + .9 × 4 p (1 − p)) at a success rate p; `hard`: most to what is seldom solved,
    weight × (.1 + .9 × (1 − p))."""

    @field_validator("mixture")
    @classmethod
    def _can_be_sampled(cls, mixture: dict[str, EntrySettings]) -> dict[str, EntrySettings]:
        try:
            check_entries(mixture)
        except EnvError as error:
            raise ValueError(str(error)) from None
        return mixture

    @property
    def name(self) -> str:
        """`encyclopedia + bandit`."""
        return " + ".join(self.mixture)


def _is_mixture(section: object) -> str:
    return "a mixture" if isinstance(section, MixtureSettings) or _has_mixture(section) else "one environment"


def _has_mixture(section: object) -> bool:
    return isinstance(section, dict) and "mixture" in section


AnyEnvSettings: TypeAlias = Annotated[
    Annotated[EnvSettings, Tag("one environment")] | Annotated[MixtureSettings, Tag("a mixture")],
    Discriminator(_is_mixture),
]
"""The `env` section: one environment, or a mixture of several."""


def settings_by_env(env: EnvSettings | MixtureSettings) -> Mapping[str, EnvSettings]:
    """Of one environment or of each in a mixture, by its section: `{"env.mixture.bandit": ...}`."""
    if isinstance(env, EnvSettings):
        return {"env": env}
    return {f"env.mixture.{name}": entry for name, entry in env.mixture.items()}


def make_env(settings: EnvSettings | MixtureSettings, where: str = "env") -> Env:
    """The environment that the settings name, or the mixture of several, ready to spawn episodes."""
    if isinstance(settings, MixtureSettings):
        entries = {name: _make_entry(entry, f"env.mixture.{name}") for name, entry in settings.mixture.items()}
        return Mixture(entries, sampling=settings.sampling)
    if settings.unrecorded:
        name, value = next(iter(settings.unrecorded.items()))
        made = settings.name.rpartition(":")[2]
        raise ConfigError(
            f"{where}: {made} was made in Python with an argument that a config cannot hold ({name}={value}): pass it "
            f"again: turnwise.evaluate(run=..., env={made}(...))"
        )
    kind = dataclasses.replace(ENV, key=f"{where}.name", args=f"{where}.args")
    env = make_plugin(kind, settings, BUILT_IN, Env)  # type: ignore[type-abstract]  # a base, not to be made
    if settings.tasks is not None:
        # On the instance: every copy that `spawn` makes has it, and no class is asked to know of files.
        object.__setattr__(env, "tasks", tasks_of(settings.tasks))
    return with_chaos(env, settings.chaos)


def _make_entry(settings: EntrySettings, where: str) -> Entry:
    options = {name: getattr(settings, name) for name in EntryOptions.model_fields}
    return Entry(env=make_env(settings, where), **options)


def describe_env(env: Env) -> EnvSettings | MixtureSettings:
    """The settings that make an environment again: its class by name, and the arguments it was made with."""
    if not isinstance(env, Mixture):
        return _describe_one(env)
    mixture = {}
    for name, entry in env.entries.items():
        options = {option: getattr(entry, option) for option in EntryOptions.model_fields}
        mixture[name] = EntrySettings(**dict(_describe_one(entry.env)), **options)
    return MixtureSettings(mixture=mixture, sampling=env.sampling)


def _describe_one(env: Env) -> EnvSettings:
    workers, env = env.host.workers, env.prototype
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
