"""A setting's type in words."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_NAMES: Mapping[object, str] = {int: "integer", float: "number", bool: "true or false", str: "text", NoneType: "null"}


def describe_type(field: FieldInfo) -> str:
    """`integer ≥ 1`, `number > 0 or null`, or the values there are to choose from."""
    bounds = [
        f"{sign} {getattr(one, bound):g}"
        for one in field.metadata
        for bound, sign in _BOUNDS.items()
        if hasattr(one, bound)
    ]
    name, *others = _name(field.annotation)
    return " or ".join([f"{name} {', '.join(bounds)}" if bounds else name, *others])


def _name(annotation: object) -> list[str]:
    """The alternatives of an annotation in words; the first is what a bound is about."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _NAMES:
        return [_NAMES[annotation]]
    if origin is Annotated:
        return _name(arguments[0])
    if origin is Literal:
        return [" or ".join(f"`{value}`" for value in arguments)]
    if origin in (Union, UnionType):
        return [name for argument in arguments for name in _name(argument)]
    if origin is tuple:
        return [
            f"list of {_name(arguments[0])[0]}" if arguments[-1] is Ellipsis else f"list of {len(arguments)} numbers"
        ]
    if origin is dict:
        return ["mapping"]
    return ["file"] if annotation is Path else ["section"]
