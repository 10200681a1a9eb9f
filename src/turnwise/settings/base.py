"""The base of every configuration model.

Invariant: unknown keys are errors, values are never coerced, and a settings object never changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator


class Settings(BaseModel):
    """One section of a recipe; a field's docstring, beneath it, is its documentation.

    Files and folders are `str` fields: a default of type `Path` does not pass pydantic's strict JSON mode.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    short_form: ClassVar[str | None] = None
    """The field that plain text stands for: with `name`, a recipe may write `model: small`."""
    short_form_keeps: ClassVar[bool] = True
    """Whether the section's other values stay where text is laid over them."""
    familiar_names: ClassVar[Mapping[str, str]] = {}
    """What keys of other libraries are called here, by the end of their dotted names."""

    def unread(self) -> Mapping[str, str]:
        """Settings that nothing reads beside the others, each with the one that decides it: `{"lam": "estimator"}`."""
        return {}


def by_kind(default: str) -> Discriminator:
    """Chooses among tagged settings by their `kind`, which may be left out:

    Annotated[Annotated[Local, Tag("local")] | Annotated[Remote, Tag("remote")], by_kind("local")]
    """

    def kind_of(section: object) -> object:
        return section.get("kind", default) if isinstance(section, dict) else getattr(section, "kind", None)

    return Discriminator(kind_of)


def sections_of(annotation: object) -> Iterator[type[BaseModel]]:
    """The settings classes that a field's annotation names: two for `A | B | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_of(argument)


def is_table(annotation: object) -> bool:
    """Whether a field holds sections by names of the user's own: `dict[str, EntrySettings]`, or null."""
    if get_origin(annotation) in (Union, UnionType):
        return any(map(is_table, get_args(annotation)))
    return get_origin(annotation) is dict and any(True for _ in sections_of(annotation))


def all_keys(cls: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key under a section, sections included: `rollout`, `rollout.group_size`, ..."""
    for name, field in cls.model_fields.items():
        yield prefix + name
        if is_table(field.annotation):
            continue  # its keys are the user's
        for section in sections_of(field.annotation):
            yield from all_keys(section, f"{prefix}{name}.")


def sections_at(cls: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """The settings classes that may stand at a path; none where it leads to a value or nowhere."""
    models: list[type[BaseModel]] = [cls]
    for part in path:
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [inner for field in fields for inner in sections_of(field.annotation)]
    return models
