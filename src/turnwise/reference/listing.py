"""Every key of a recipe with its type, default, meaning, readers and familiar names.

Invariant: all of it is read from the settings themselves and from the package's source, so it cannot disagree with
either; a key that nothing reads has no reader, and a test refuses it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import get_args, get_origin

from pydantic import BaseModel

from turnwise.algorithms import ALGORITHM, ALGORITHMS
from turnwise.config import Config
from turnwise.envs.registry import EnvSettings
from turnwise.errors import ConfigError
from turnwise.familiar import FAMILIAR
from turnwise.reference.docstrings import field_docs
from turnwise.reference.readers import find_readers
from turnwise.reference.types import describe_type
from turnwise.settings import KeyPath, Settings
from turnwise.settings.base import is_table, sections_of
from turnwise.settings.explain import tell_familiar
from turnwise.spelling import suggest

REQUIRED = "required"
NAME = "NAME"
"""In a key: where a user's own name stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key of a recipe: `Setting(key="rollout.group_size", type="integer ≥ 1", default="8", ...)`."""

    key: str
    type: str
    default: str
    about: str
    read_by: tuple[str, ...]
    """Modules of the package: `rollout/collector.py`."""
    known_as: tuple[str, ...]
    """What other libraries call it."""

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]


def list_settings(under: str = "") -> list[Setting]:
    """Every setting, or those of one section, or one by its key: `list_settings("learner.optimizer")`."""
    every = [*_of_algorithm(), *_walk(Config, Config(env=EnvSettings(name="")), ())]
    chosen = [one for one in every if not under or one.key == under or one.key.startswith(f"{under}.")]
    if not chosen:
        raise ConfigError(_explain_unknown(under, every))
    return chosen


def about_section(key: str) -> str:
    """What a section is for: the first sentence of its settings' docstring."""
    models: list[type[BaseModel]] = [Config]
    for part in key.split(".") if key else ():
        if part != NAME:
            fields = [model.model_fields[part] for model in models if part in model.model_fields]
            models = [section for field in fields for section in sections_of(field.annotation)]
    shown = models if len(_kinds(models)) > 1 else models[:1]
    return " ".join(" ".join((model.__doc__ or "").split("\n\n")[0].split()) for model in shown)


def _of_algorithm() -> Iterator[Setting]:
    yield Setting(
        key=ALGORITHM,
        type=" or ".join(f"`{name}`" for name in ALGORITHMS),
        default="null",
        about="Short for what a recipe spells out: estimator, form of the loss and filter. What the same recipe sets "
        "beside it wins; null leaves every section as it is.",
        read_by=("algorithms.py",),
        known_as=(),
    )


def _walk(cls: type[BaseModel], values: Settings, path: KeyPath) -> Iterator[Setting]:
    """The values of a section, then its sections; one that is null by default is shown as it is once it is given."""
    inner: list[tuple[KeyPath, type[BaseModel]]] = []
    for name, field in cls.model_fields.items():
        sections = [] if get_origin(field.annotation) is tuple else list(sections_of(field.annotation))
        table = is_table(field.annotation)
        inner += [((name, NAME) if table else (name,), section) for section in sections]
        if sections and not table and NoneType not in get_args(field.annotation):
            continue
        key = ".".join((*path, name))
        yield Setting(
            key=key,
            type=describe_type(field) if table or not sections else f"section, or null: `{key}: {{}}` enables it",
            default=REQUIRED if field.is_required() else _show(getattr(values, name)),
            about=field_docs(cls).get(name, ""),
            read_by=find_readers(cls, name),
            known_as=tuple(known for known, ours in FAMILIAR.items() if key in _keys_of(ours)),
        )
    kinds = {names: _kinds([section for other, section in inner if other == names]) for names, _ in inner}
    for names, section in inner:
        value = getattr(values, names[0], None)  # absent where it is required
        own = value if isinstance(value, section) and isinstance(value, Settings) else _default(section)
        below = (*path, *names)
        if len(kinds[names]) < 2:
            yield from _walk(section, own, below)
        elif section is next(iter(kinds[names].values())):  # all kinds at once, in place of the first
            yield from _merge_kinds(
                {kind: list(_walk(one, _default(one), below)) for kind, one in kinds[names].items()}
            )


def _kinds(sections: Sequence[type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """The sections among which `kind` chooses, by kind."""
    return {str(one.model_fields["kind"].default): one for one in sections if "kind" in one.model_fields}


def _merge_kinds(kinds: Mapping[str, list[Setting]]) -> Iterator[Setting]:
    """The settings of all kinds, each key once, with the kinds that have it and what each says of it."""
    every = {kind: {one.key: one for one in settings} for kind, settings in kinds.items()}
    for key in dict.fromkeys(key for settings in every.values() for key in settings):
        having = {kind: settings[key] for kind, settings in every.items() if key in settings}
        first, *others = having.values()
        texts = list(dict.fromkeys(one.about for one in having.values()))
        if len(texts) > 1:
            about = " ".join(f"{kind}: {one.about}" for kind, one in having.items())
        else:
            about = first.about if len(having) == len(kinds) else f"{', '.join(having)}: {first.about}"
        yield replace(
            first,
            type=" or ".join(dict.fromkeys(one.type for one in having.values())),
            about=about,
            read_by=tuple(sorted({*first.read_by, *(reader for one in others for reader in one.read_by)})),
        )


def _default(section: type[BaseModel]) -> Settings:
    made = section.model_construct()  # a key may be required
    assert isinstance(made, Settings)
    return made


def _keys_of(ours: str) -> list[str]:
    """The keys that a row of `FAMILIAR` names; none where it says in words that there is none."""
    words = ours.partition(";")[0].replace(" and ", " ").replace(" × ", " ").split()
    return [] if words[0] == "the" else words


def _show(value: object) -> str:
    if isinstance(value, Settings):
        given = value.model_dump(mode="json", exclude_unset=True)
        return json.dumps(given, ensure_ascii=False)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)


def _explain_unknown(key: str, every: list[Setting]) -> str:
    familiar = next((FAMILIAR[end] for end in _ends(key) if end in FAMILIAR), None)
    if familiar:
        return f"{key} is {tell_familiar(familiar)}"
    sections = {".".join(one.key.split(".")[:depth]) for one in every for depth in range(1, one.key.count(".") + 2)}
    last = key.rpartition(".")[2]
    same = sorted((one.key for one in every if one.key.rpartition(".")[2] == last), key=lambda one: NAME in one)
    near = f" (did you mean '{same[0]}'?)" if same else suggest(key, sorted(sections))
    return f"settings: there is no '{key}'{near}; the sections are: {', '.join(Config.model_fields)}"


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[first:]) for first in range(len(parts))]
