"""From plain data and overrides to settings.

Invariant: a wrong key, value or file is one line of `ConfigError` with its place and what would be right; unknown keys
are errors with a suggestion; nothing is coerced and nothing is ignored.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from turnwise.errors import ConfigError
from turnwise.settings.base import Settings, is_table, sections_at
from turnwise.settings.data import load_yaml, plain_data
from turnwise.settings.explain import explain, one_line
from turnwise.settings.layers import Layer, Recipe, Whole

S = TypeVar("S", bound=Settings)
OVERRIDE = "override"
"""The origin of what the command line sets."""


def parse_settings(cls: type[S], data: Mapping[str, object], *, overrides: Sequence[str] = (), source: str) -> S:
    """Settings from data and overrides such as `"optimizer.lr=1e-4"`, whose values are YAML.

    `source` names the data in errors: the recipe's path. A value from a recipe that was extended names that one.
    """
    recipe = add_overrides(cls, data if isinstance(data, Recipe) else Recipe([Layer(source, data)]), overrides)
    plain = plain_data(recipe, source)
    try:
        # JSON's strict mode takes a list for a tuple and text for an enum or a path, but never "8" for 8.
        return cls.model_validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        message = one_line(explain(cls, plain, recipe.origins, source, error.errors(include_url=False)))
    raise ConfigError(message)


def add_overrides(cls: type[Settings], recipe: Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe with one more layer, the overrides; text that stands for a section (`model: small`) becomes one."""
    data: dict[str, object] = {}
    for override in overrides:
        _set(data, override)
        data = _expand(data, [cls])
    layers = [*recipe.layers, *([Layer(OVERRIDE, data)] if overrides else [])]
    return Recipe(replace(layer, data=_expand(layer.data, [cls])) for layer in layers)


def _set(data: dict[str, object], override: str) -> None:
    """Sets one `a.b=c` in place, making the sections it passes through; a mapping replaces what was there."""
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    shown = f"'{one_line(override)}'"
    if not equals or not all(path):
        raise ConfigError(f"override {shown}: write it as section.key=value, such as rollout.group_size=8")
    source = f"override {shown}"
    value = plain_data({"value": load_yaml(text, source=source)}, source)["value"]
    section = data
    for part in path[:-1]:
        below = section.get(part)
        inner = below if isinstance(below, dict) else {}
        section[part] = inner
        section = inner
    section[path[-1]] = Whole(value) if isinstance(value, dict) else value


def _expand(data: Mapping[str, object], models: Sequence[type[BaseModel]]) -> dict[str, object]:
    """The same data, with sections in place of the text that stands for them."""
    expanded = Whole() if isinstance(data, Whole) else dict[str, object]()
    for key, value in data.items():
        sections = [section for model in models for section in sections_at(model, (str(key),))]
        if isinstance(value, list):
            expanded[key] = [_expand_one(one, sections) for one in value]
        elif isinstance(value, Mapping) and any(_is_table(model, str(key)) for model in models):
            table = {name: _expand_one(one, sections) for name, one in value.items()}
            expanded[key] = Whole(table) if isinstance(value, Whole) else table
        else:
            expanded[key] = _expand_one(value, sections)
    return expanded


def _is_table(model: type[BaseModel], name: str) -> bool:
    return name in model.model_fields and is_table(model.model_fields[name].annotation)


def _expand_one(value: object, sections: Sequence[type[BaseModel]]) -> object:
    if isinstance(value, Mapping):
        return _expand(value, sections)
    short = [one for one in sections if issubclass(one, Settings) and one.short_form]
    if not short or not isinstance(value, str):
        return value
    section = {str(short[0].short_form): value}
    return section if short[0].short_form_keeps else Whole(section)
