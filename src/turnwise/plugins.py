"""Plug-ins: a user's own estimator, loss form, reward, environment, renderer, filter or callback, found by name.

Invariant: nothing is imported before it is asked for; a wrong name or argument is one line of `ConfigError` with the
nearest right one. A name is one that comes with the package, an entry point, `package.module:name` or `file.py:name`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from traceback import walk_tb
from types import FunctionType, ModuleType
from typing import TypeAlias, TypeGuard, TypeVar, Unpack, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from turnwise.errors import ConfigError, TurnwiseError
from turnwise.settings import Settings, explain_value
from turnwise.sources import Source, describe_source, require_trusted, strings_of
from turnwise.spelling import suggest

Known: TypeAlias = Mapping[str, str]
"""What comes with the package, by name: `{"bandit": "turnwise.envs.games.bandit:Bandit"}`."""
T = TypeVar("T")

_OBJECTS: dict[str, object] = {}
"""Objects that were given in Python, by the name a config writes for them: a class of `__main__` is in no module."""
_FOUND: dict[str, object] = {}
"""What was found by a name that is not the package's."""
_LOADING: list[Path] = []
"""The files of the user's that are being run at this moment."""


class StopLoading(BaseException):
    """Ends a file that is run for what it defines, where it would begin to train: what stands above is enough."""


class PluginSettings(Settings):
    """A plug-in and what to make it with: `{name: my_package.trackers:Csv, args: {path: curve.csv}}`."""

    short_form = "name"
    short_form_keeps = False  # the arguments of one plug-in are not another's

    name: str
    """A name that is built in, `package.module:name`, or `path/to/file.py:name`."""
    args: dict[str, JsonValue] = Field(default_factory=dict)
    """Its keyword arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginKind:
    """What can be plugged in somewhere: `PluginKind(key="env.name", noun="environment", group="turnwise.envs")`."""

    key: str
    """Where a recipe names one, for error messages."""
    noun: str
    """`environment`; its plural has an s."""
    group: str
    """The entry points that name more of them."""
    args: str
    """Where a recipe gives its arguments: `env.args`."""
    contract: str
    """How one is written: `derive it from turnwise.Env`."""

    @property
    def one(self) -> str:
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"


def find_plugin(kind: PluginKind, name: str, known: Known, accepts: Callable[[object], bool] = callable) -> object:
    """The object that a name stands for; `known` are the names that come with the package."""
    place, colon, attribute = _place(kind, name, known).rpartition(":")
    if not colon or not place or not attribute:
        raise ConfigError(f"{kind.key}: {unknown_name(kind, name, known)}")
    found = _OBJECTS.get(name)
    if found is None:
        own = name not in known and ":" in name
        module = _find_module(kind, place, name, require_trusted(kind.key, name) if own else None)
        found = _get(module, attribute)
        if found is None:
            fit = {key: value for key, value in vars(module).items() if accepts(value) and not key.startswith("_")}
            # Not what the file imports, such as ToolEnv or reward, unless it has nothing of its own.
            there = [key for key, value in fit.items() if not _is_imported(value, module)] or list(fit)
            raise ConfigError(
                f"{kind.key}: {place} has no '{attribute}'{suggest(attribute, there)}; its {kind.noun}s are: "
                f"{', '.join(there) or 'none'}"
            )
        if own:
            _FOUND[name] = found
    if not accepts(found):
        raise ConfigError(f"{kind.key}: '{attribute}' of {place} is not {kind.one}; {kind.contract}")
    return found


def find_function(kind: PluginKind, name: str, known: Known) -> Callable[..., object]:
    """The function that a name stands for."""

    def accepts(value: object) -> TypeGuard[Callable[..., object]]:
        return callable(value) and not isinstance(value, type)

    found = find_plugin(kind, name, known, accepts)
    assert accepts(found), "only what is accepted is found"
    return found


def make_plugin(kind: PluginKind, settings: PluginSettings, known: Known, base: type[T]) -> T:
    """Makes the plug-in that the settings name, which must be a subclass of `base`."""

    def accepts(value: object) -> TypeGuard[type[T]]:
        return isinstance(value, type) and issubclass(value, base)

    found = find_plugin(kind, settings.name, known, accepts)
    assert accepts(found), "only what is accepted is found"
    arguments = check_arguments(kind, settings.name, found, settings.args)
    try:
        return found(**arguments)
    except TurnwiseError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind.args}: {settings.name} cannot be made: {error}") from error


def check_arguments(
    kind: PluginKind,
    name: str,
    function: Callable[..., object],
    args: Mapping[str, JsonValue],
    *,
    supplied: int = 0,
    but: Collection[str] = (),
) -> dict[str, object]:
    """Arguments as the function's signature has them, by name and by annotation.

    The first `supplied` parameters and those named in `but` come from elsewhere.
    """
    every = list(inspect.signature(function).parameters.values())[supplied:]
    hints = _hints(function)
    named = [one for one in every if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD) and one.name not in but]
    known = [one.name for one in named]
    rest = next((one for one in every if one.kind is one.VAR_KEYWORD), None)
    if rest is not None and get_origin(hints.get(rest.name)) is Unpack:
        further = get_type_hints(get_args(hints[rest.name])[0])
        hints, known, rest = hints | further, [*known, *further], None
    for argument in args:
        if argument not in known and rest is None:
            raise ConfigError(
                f"{kind.args}: {name} has no argument '{argument}'{suggest(argument, known)}; "
                f"its arguments are: {', '.join(known) or 'none'}"
            )
    for one in named:
        if one.default is one.empty and one.name not in args:
            raise ConfigError(f"{kind.args}: {name} missing a required argument: '{one.name}'; add it to {kind.args}")
    return {key: _checked(kind, key, hints.get(key), value) for key, value in args.items()}


def name_object(value: object) -> str:
    """The name under which a config writes an object given in Python, and `find_plugin` then finds that very object."""
    name = f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    _OBJECTS[name] = value
    return name


def describe_sources(config: Settings) -> dict[str, Source]:
    """Where the user's own Python came from that a config names, by name; what it does not use is not among it."""
    there = _FOUND | _OBJECTS
    named = set(strings_of(config.model_dump(mode="json")))
    return {name: describe_source(name, there[name]) for name in sorted(named) if name in there}


def is_loading() -> bool:
    """Whether this is called by a file that is being run for what it defines."""
    return bool(_LOADING)


def names_of(kind: PluginKind, known: Known) -> list[str]:
    """Every name there is: those of the package, then those of entry points."""
    return [*known, *(point.name for point in metadata.entry_points(group=kind.group) if point.name not in known)]


def unknown_name(kind: PluginKind, name: str, known: Known) -> str:
    """`'grop' is not an estimator (did you mean 'grpo'?); the built-in ones are: gae, turn-gae, ...`."""
    there = names_of(kind, known)
    return (
        f"'{name}' is not {kind.one}{suggest(name, there)}; the built-in ones are: {', '.join(there)}; "
        "your own is named module:name or file.py:name"
    )


def require_name(kind: PluginKind, name: str, known: Known) -> str:
    """The name, unless it cannot name anything; a module or file that it names is not looked at yet."""
    if name not in known and ":" not in name and name not in names_of(kind, known):
        raise ValueError(unknown_name(kind, name, known))
    return name


def _place(kind: PluginKind, name: str, known: Known) -> str:
    if name in known:
        return known[name]
    if ":" in name:
        return name
    points = metadata.entry_points(group=kind.group, name=name)
    return next((point.value.replace(" ", "") for point in points), "")


def _find_module(kind: PluginKind, place: str, name: str, source: Source | None) -> ModuleType:
    """The module of a plug-in; one that a run recorded is that very file, wherever the working folder is."""
    if source is None or source.file is None:
        return _load_file(kind, Path(place), name) if place.endswith(".py") else _load_module(kind, place, name)
    file = Path(source.file)
    if "." not in place or place.endswith(".py"):
        return _load_file(kind, file, name)
    root = file.parents[place.count(".") + (file.name == "__init__.py")]
    with _importable(root):
        return _load_module(kind, place, name)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Lets modules beside a file be imported while it is run."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _get(module: ModuleType, qualified: str) -> object:
    """`Outer.Inner` of a module; None where it is not there."""
    found: object = module
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found


def _load_module(kind: PluginKind, place: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(f"{kind.key}: importing {place} failed: {error}") from error
        file = Path(*place.split(".")).with_suffix(".py")
        hint = f"; did you mean '{file}:{name.rpartition(':')[2]}'?" if file.exists() else "; is it installed?"
        raise ConfigError(f"{kind.key}: there is no module '{error.name}'{hint}") from error
    except Exception as error:
        raise ConfigError(f"{kind.key}: importing {place} failed: {_describe(error)}") from error


def _load_file(kind: PluginKind, path: Path, name: str) -> ModuleType:
    if not path.is_file():
        nearby = sorted(str(file) for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise ConfigError(f"{kind.key}: there is no file '{path}'{suggest(str(path), nearby)}, named by '{name}'")
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
    _LOADING.append(path)
    try:
        with _importable(path.resolve().parent):
            spec.loader.exec_module(module)
    except StopLoading:
        pass
    except Exception as error:
        del sys.modules[module_name]
        raise ConfigError(f"{kind.key}: running {_line_of(error, path)} failed: {_describe(error)}") from error
    finally:
        _LOADING.remove(path)
    return module


def _is_imported(value: object, module: ModuleType) -> bool:
    return isinstance(value, type | FunctionType) and value.__module__ != module.__name__


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _line_of(error: Exception, path: Path) -> str:
    """`support.py:12`, the line of the file at which it failed."""
    # Python makes the path of a file it runs absolute.
    lines = [line for frame, line in walk_tb(error.__traceback__) if Path(frame.f_code.co_filename) == path.absolute()]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _hints(function: Callable[..., object]) -> dict[str, object]:
    """The annotations of the parameters; none where one of them names something that is not there at run time."""
    try:
        return get_type_hints(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    except (NameError, TypeError, AttributeError):
        return {}


def _checked(kind: PluginKind, key: str, hint: object, value: JsonValue) -> object:
    """A value by its annotation, as strictly as a setting of ours; one that pydantic cannot read is left as it is."""
    if hint is None:
        return value
    try:
        return _adapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ConfigError(explain_value(f"{kind.args}.{key}", error)) from None
    except (PydanticUserError, NameError, TypeError, ValueError, RecursionError):
        return value


def _adapter(hint: object) -> TypeAdapter[object]:
    try:
        return TypeAdapter(hint)  # type: ignore[arg-type]  # an annotation, whatever it is
    except PydanticSchemaGenerationError:
        # `rewards: Sequence[str | Reward]`: names can be written in a recipe, objects cannot.
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))  # type: ignore[arg-type]
