"""The base of every configuration model, and the way from plain data to settings.

Invariant: a wrong key, value or file is one line of `ConfigError` with its place and what would be right; unknown keys
are errors with a suggestion; nothing is coerced and nothing is ignored.

Each room keeps its settings beside the code that reads them; `config.py` only puts them together.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, ValidationError
from pydantic_core import ErrorDetails

from turnwise.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]
RESOLVED = "# Every setting, defaults included, as it was resolved."
"""The first line that `dump_settings` writes: these values were not chosen one by one."""


class Settings(BaseModel):
    """One section of a recipe; a field's docstring, beneath it, is its documentation.

    Files and folders are `str` fields: a default of type `Path` does not pass pydantic's strict JSON mode.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

    def unread(self) -> Mapping[str, str]:
        """Settings that nothing reads beside the others, each with the one that decides it: `{"lam": "estimator"}`."""
        return {}


S = TypeVar("S", bound=Settings)


def by_kind(default: str) -> Discriminator:
    """Chooses among tagged settings by their `kind`, which may be left out:

    Annotated[Annotated[Local, Tag("local")] | Annotated[Remote, Tag("remote")], by_kind("local")]
    """

    def kind_of(section: object) -> object:
        return section.get("kind", default) if isinstance(section, dict) else getattr(section, "kind", None)

    return Discriminator(kind_of)


class Recipe(dict[str, object]):
    """A recipe's data, with the file that each value came from, since `extends` joins several."""

    def __init__(
        self, data: Mapping[str, object], origins: Mapping[KeyPath, str], layers: Sequence[str] | None = None
    ) -> None:
        """`layers` are the files that were written by hand, in the order in which they override each other."""
        super().__init__(data)
        self.origins = dict(origins)
        self.layers = tuple(dict.fromkeys(origins.values()) if layers is None else layers)


def parse_settings(cls: type[S], data: Mapping[str, object], *, overrides: Sequence[str] = (), source: str) -> S:
    """Settings from data and overrides such as `"optimizer.lr=1e-4"`, whose values are YAML.

    `source` names the data in errors: the recipe's path. A value from a recipe that was extended names that one.
    """
    plain = plain_data(data, source)
    origins = dict(data.origins) if isinstance(data, Recipe) else {}
    for override in overrides:
        path = _override(plain, override)
        origins = {known: origin for known, origin in origins.items() if known[: len(path)] != path}
        origins[path] = "override"
    try:
        # JSON's strict mode takes a list for a tuple and text for an enum or a path, but never "8" for 8.
        return cls.model_validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        message = _explain(cls, plain, origins, source, error.errors(include_url=False))
    raise ConfigError(message)


def dump_settings(settings: Settings) -> str:
    """YAML that `load_yaml` and `parse_settings` read back to an equal value."""
    data = settings.model_dump(mode="json")
    return f"{RESOLVED}\n{yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)}"


def rank_values(data: Mapping[str, object], overrides: Sequence[str] = ()) -> dict[KeyPath, int]:
    """The values that were chosen by name, each with its layer: a recipe ranks above the one it extends, an override
    above both. The values of a file that `dump_settings` wrote are not among them."""
    if isinstance(data, Recipe):
        layers = data.layers
        ranks = {path: layers.index(origin) for path, origin in data.origins.items() if origin in layers}
    else:
        layers, ranks = ("data",), {path: 0 for path, _ in leaves(data)}
    for override in overrides:
        path = tuple(override.partition("=")[0].strip().split("."))
        ranks = {known: rank for known, rank in ranks.items() if known[: len(path)] != path}
        ranks[path] = len(layers)
    return ranks


def load_yaml(text: str, *, source: str) -> object:
    """Plain data from YAML 1.2's core types: `1e-4` is a number, `off` is text, a key given twice is an error."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise ConfigError(f"{place}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def leaves(data: Mapping[str, object], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Every value that is not a section, with its path: `(("rollout", "tasks"), 8)`."""
    for key, value in data.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema in place of PyYAML's 1.1, where `1e-4` is text, `off` is false and `010` is 8."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way to hold them)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise yaml.MarkedYAMLError(problem=f"key '{key.value}' is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return dict(super().construct_mapping(node, deep=deep))

    def construct_number(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or 1.2 would take for something else, so that any reader agrees."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Left to itself, PyYAML writes U+0085 and its kin bare and reads them back as line breaks.
        style = None if text.replace("\n", "").isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CORE = (
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("int", re.compile(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+"), "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", re.compile(r"<<"), "<"),
)
for _tag, _pattern, _first in _CORE:
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    for _side in (_Loader, _Dumper):
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_number)
_Dumper.add_representer(str, _Dumper.represent_text)


def plain_data(data: Mapping[str, object], source: str) -> dict[str, object]:
    """A copy made of JSON's types alone: keys are text, tuples are lists."""
    try:
        copy: dict[str, object] = json.loads(json.dumps(dict(data)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: holds a value that is not plain data ({error})") from None
    return copy


def _override(data: dict[str, object], override: str) -> KeyPath:
    """Sets one `a.b=c` in place, making the sections it passes through."""
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(f"override '{override}': write it as section.key=value, such as rollout.group_size=8")
    section = data
    for part in path[:-1]:
        below = section.get(part)
        inner: dict[str, object] = below if isinstance(below, dict) else {}
        section[part] = inner
        section = inner
    value = load_yaml(text, source=f"override '{override}'")
    section[path[-1]] = plain_data({"value": value}, f"override '{override}'")["value"]
    return path


def _explain(
    cls: type[Settings],
    data: Mapping[str, object],
    origins: Mapping[KeyPath, str],
    source: str,
    errors: Sequence[ErrorDetails],
) -> str:
    """One line for the mistake that explains most: an unknown key first, since a typo also leaves its key missing."""
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for error in sorted(errors, key=lambda error: error["type"] != "extra_forbidden"):
        by_path.setdefault(_key_path(error, data), []).append(error)
    path, here = next(iter(by_path.items()))
    key, origin, kind = ".".join(path), _origin(path, origins, source), here[0]["type"]
    more = f" (and {len(by_path) - 1} more)" if len(by_path) > 1 else ""
    if kind == "extra_forbidden":
        return f"{key}: unknown key in {origin}; {_suggest(cls, path, here[0]['loc'])}{more}"
    if kind == "union_tag_invalid":
        tag, tags = str(here[0]["ctx"]["tag"]), re.findall(r"'(.*?)'", str(here[0]["ctx"]["expected_tags"]))
        return f"{key}.kind: unknown kind '{tag}' in {origin}; {_nearest(tag, tags)}{more}"
    if kind == "missing":
        return f"{key}: required, but missing in {origin}{more}"
    if kind in ("value_error", "assertion_error"):
        message = here[0]["msg"].partition(", ")[2]
        return f"{key}: {message} ({origin}){more}" if key else f"{origin}: {message}{more}"
    expected = " or ".join(dict.fromkeys(_expected(error["msg"]) for error in here))
    return f"{key or 'the recipe'}: expected {expected}, got {show_value(here[0]['input'])} in {origin}{more}"


def _key_path(error: ErrorDetails, data: object) -> KeyPath:
    """The error's place as a user wrote it: pydantic's also names members of unions, which no recipe does."""
    path: list[str] = []
    for part in error["loc"]:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and part in range(len(data)):
            data = data[int(part)]
        elif error["type"] != "missing" or part is not error["loc"][-1]:
            continue
        path.append(str(part))
    return tuple(path)


def _origin(path: KeyPath, origins: Mapping[KeyPath, str], source: str) -> str:
    """The file that gives the value at `path`, or a part of it; the whole recipe if none does."""
    writers = [origin for known, origin in origins.items() if known[: len(path)] == path[: len(known)]]
    return writers[-1] if path and writers else source


def _suggest(cls: type[Settings], path: KeyPath, loc: Sequence[str | int]) -> str:
    """The known key that was probably meant; `loc` is pydantic's, which also names the kind of a section."""
    models: list[type[BaseModel]] = [cls]
    for part in path[:-1]:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        # A part that no model knows is an index, or a key of a free-form mapping: the models stay those of its values.
        models = [inner for field in fields for inner in _sections(field.annotation)] if fields else models
        models = [model for model in models if _kind(model) in loc] or models
    known = sorted({name for model in models for name in model.model_fields})
    elsewhere = [name for name in _all_keys(cls) if name.rpartition(".")[2] == path[-1] and name != ".".join(path)]
    return _nearest(path[-1], known, elsewhere)


def _nearest(given: str, known: Sequence[str], elsewhere: Sequence[str] = ()) -> str:
    near = difflib.get_close_matches(given, known, n=1) or elsewhere
    return f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(known)}"


def _kind(model: type[BaseModel]) -> object:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


def _sections(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _all_keys(cls: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in cls.model_fields.items():
        yield prefix + name
        for section in _sections(field.annotation):
            yield from _all_keys(section, f"{prefix}{name}.")


_WORDS = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid array": "a list",
    "an object": "a mapping",
    "Unable to extract tag using discriminator kind_of()": "a mapping",
}


def _expected(message: str) -> str:
    wanted = message.removeprefix("Input should be ")
    bound = wanted.startswith(("greater", "less", "a multiple"))
    return _WORDS.get(wanted, f"a value {wanted}" if bound else wanted)


def explain_value(key: str, error: ValidationError) -> str:
    """One line for a value that is not what its annotation says: `env.args.size: expected an integer, got "4"`."""
    details = error.errors(include_url=False)
    expected = " or ".join(dict.fromkeys(_expected(detail["msg"]) for detail in details))
    return f"{key}: expected {expected}, got {show_value(details[0]['input'])}"


def show_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
