"""Finds the environment a recipe names: a built-in one, a class in a module, or a class in a file.

Invariant: nothing is imported until it is asked for, and every way to name a thing wrongly is one line that
names the nearest right one.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from pydantic import Field, JsonValue

from turnwise.envs.base import Env
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.settings import Settings
from turnwise.spelling import suggest

BUILT_IN = {
    "encyclopedia": "turnwise.envs.encyclopedia.env:Encyclopedia",
    "search_qa": "turnwise.envs.qa.env:SearchQA",
    "bandit": "turnwise.envs.games.bandit:Bandit",
    "frozen_lake": "turnwise.envs.games.frozen_lake:FrozenLake",
    "sokoban": "turnwise.envs.games.sokoban.env:Sokoban",
    "countdown": "turnwise.envs.games.countdown:Countdown",
    "gymnasium": "turnwise.envs.adapters.gymnasium:GymnasiumGame",
}


class EnvSettings(Settings):
    """Which environment, and what to make it with."""

    name: str
    """A built-in name, `package.module:Class`, or `path/to/file.py:Class`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """The arguments of its constructor."""


def make_env(settings: EnvSettings) -> Env:
    """The environment that the settings name, ready to spawn episodes."""
    cls = _find_class(settings.name)
    _check_arguments(cls, settings)
    try:
        return cls(**settings.args)
    except TurnwiseError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.args: {settings.name} cannot be made: {error}") from error


def _find_class(name: str) -> type[Env]:
    place, colon, class_name = BUILT_IN.get(name, name).rpartition(":")
    if not colon or not place or not class_name:
        known = ", ".join(BUILT_IN)
        raise ConfigError(
            f"env.name: '{name}' is not an environment{suggest(name, BUILT_IN)}; "
            f"the built-in ones are: {known}; your own is named module:Class or file.py:Class"
        )
    module = _load_file(Path(place), name) if place.endswith(".py") else _load_module(place, name)
    found = getattr(module, class_name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if _is_env(value) and value is not Env]
        hint = suggest(class_name, classes)
        raise ConfigError(f"env.name: {place} has no '{class_name}'{hint}; its environments are: {', '.join(classes)}")
    if not _is_env(found):
        raise ConfigError(
            f"env.name: '{class_name}' of {place} is not an environment; derive it from turnwise.envs.Env"
        )
    return found


def _is_env(value: object) -> TypeGuard[type[Env]]:
    return isinstance(value, type) and issubclass(value, Env)


def _load_module(place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(f"env.name: importing {place} failed: {error}") from error
        file = Path(*place.split(".")).with_suffix(".py")
        hint = f"; did you mean '{file}:{name.rpartition(':')[2]}'?" if file.exists() else "; is it installed?"
        raise ConfigError(f"env.name: there is no module '{error.name}'{hint}") from error
    except Exception as error:
        raise ConfigError(f"env.name: importing {place} failed: {type(error).__name__}: {error}") from error


def _load_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        nearby = sorted(str(file) for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise ConfigError(f"env.name: there is no file '{path}'{suggest(str(path), nearby)}, named by '{name}'")
    # Named by its whole path, so that two files called env.py are two modules.
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    module_name = f"turnwise_user_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "a .py file always has a loader"
    assert spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(f"env.name: running {path} failed: {type(error).__name__}: {error}") from error
    return module


def _check_arguments(cls: type[Env], settings: EnvSettings) -> None:
    parameters = inspect.signature(cls).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for argument in settings.args:
            if argument not in parameters:
                known = ", ".join(parameters) or "none"
                raise ConfigError(
                    f"env.args: {settings.name} has no argument '{argument}'{suggest(argument, parameters)}; "
                    f"its arguments are: {known}"
                )
    try:
        inspect.signature(cls).bind(**settings.args)
    except TypeError as error:
        raise ConfigError(f"env.args: {settings.name} {error}; add it to env.args") from error
