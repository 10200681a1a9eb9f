"""A function's parameters as a JSON schema, and the raw JSON a model wrote as that function's arguments.

Invariant: what the schema says is what `read` accepts. Both come from one strict pydantic model, which
coerces nothing ("3" is not 3) and forbids arguments the function does not have.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails

from turnwise.errors import ToolError
from turnwise.spelling import suggest
from turnwise.types import Json

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_SHOWN_ERRORS = 4


class BadArgumentsError(Exception):
    """Arguments that do not fit the function; the text is for the model."""


class ArgumentReader(Protocol):
    """Turns the raw JSON that a model wrote into keyword arguments."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def read(self, arguments: str) -> dict[str, object]:
        """The keyword arguments; a BadArgumentsError in words for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a function, under the name the model sees."""

    name: str
    annotation: object
    default: object = inspect.Parameter.empty
    description: str = ""

    @property
    def field(self) -> tuple[object, object]:
        """The pair of type and default that pydantic makes a field from."""
        default = ... if self.default is inspect.Parameter.empty else self.default
        if not self.description:
            return self.annotation, Field(default, alias=self.name)
        return self.annotation, Field(default, alias=self.name, description=self.description)


class Parameters:
    """The schema of a function's parameters and the reader of its arguments, made once per function."""

    def __init__(self, tool: str, parameters: tuple[Parameter, ...]) -> None:
        self.names = tuple(parameter.name for parameter in parameters)
        # Fields go by number and the schema by alias: a parameter may be called `schema`, `copy` or `_k`.
        fields = {f"p{i}": parameter.field for i, parameter in enumerate(parameters)}
        try:
            self._model = cast(
                type[BaseModel],
                create_model(tool, __config__=_STRICT, **fields),  # type: ignore[call-overload]  # names known at run time
            )
            self.schema = _tidy(self._model.model_json_schema(schema_generator=_QuietSchema))
        except (PydanticUserError, TypeError) as error:
            raise _unsupported(tool, parameters, error) from error
        self.usage = f"{tool}({', '.join(_describe(name, self.schema) for name in self.names)})"

    def read(self, arguments: str) -> dict[str, object]:
        """The keyword arguments written in `arguments`; what was left out is left to the function's defaults."""
        try:
            values = self._model.model_validate_json(arguments)
        except ValidationError as error:
            raise BadArgumentsError(self._explain(error)) from error
        given = values.model_fields_set
        return {name: getattr(values, f"p{i}") for i, name in enumerate(self.names) if f"p{i}" in given}

    def _explain(self, error: ValidationError) -> str:
        errors = error.errors(include_url=False)
        if errors[0]["type"] == "json_invalid":
            where = errors[0]["msg"].removeprefix("Invalid JSON: ")
            return f"the arguments are not valid JSON ({where}). Usage: {self.usage}"
        if not errors[0]["loc"]:
            return f"the arguments must be one JSON object such as {self._example()}. Usage: {self.usage}"
        problems = "; ".join(self._explain_one(detail) for detail in errors[:_SHOWN_ERRORS])
        more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
        return f"{problems}{more}. Usage: {self.usage}"

    def _explain_one(self, detail: ErrorDetails) -> str:
        path = ".".join(map(str, detail["loc"]))
        if detail["type"] == "missing":
            return f"argument '{path}' is missing"
        if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            return f"there is no argument '{path}'{suggest(path, self.names)}"
        return f"argument '{path}' is wrong: {detail['msg'][:1].lower()}{detail['msg'][1:]}"

    def _example(self) -> str:
        return "{" + ", ".join(f"{json.dumps(name)}: ..." for name in self.names) + "}"


def read_parameters(
    function: Callable[..., object], tool: str, descriptions: Mapping[str, str]
) -> tuple[Parameter, ...]:
    """The parameters of a function, `self` left out; a ToolError names the one that cannot be offered."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise ToolError(
            f"tool '{tool}': a type hint cannot be resolved ({error}); define or import it first"
        ) from error
    parameters: list[Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if not parameters and name == "self" and name not in hints:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(f"tool '{tool}': parameter '{name}' is {parameter.kind.description}; give it a plain name")
        if name not in hints:
            raise ToolError(f"tool '{tool}': parameter '{name}' has no type; write e.g. `{name}: str`")
        if not _is_type(hints[name]):
            raise ToolError(
                f"tool '{tool}': parameter '{name}' has {inspect.formatannotation(hints[name])} for a type, which is "
                f"none; write e.g. `{name}: str`"
            )
        parameters.append(
            Parameter(
                name=name,
                annotation=hints[name],
                default=parameter.default,
                description=descriptions.get(name, ""),
            )
        )
    known = [parameter.name for parameter in parameters]
    for name in descriptions:
        if name not in known:
            hint = suggest(name, known)
            raise ToolError(
                f"tool '{tool}': the docstring's Args name '{name}'{hint}, which is not a parameter; correct it"
            )
    return tuple(parameters)


def _is_type(hint: object) -> bool:
    """Whether a hint, and every part of it, can be a type: pydantic takes a function for its signature."""
    if inspect.isroutine(hint):
        return False
    if get_origin(hint) in (Literal, Annotated):
        return get_origin(hint) is Literal or _is_type(get_args(hint)[0])
    return all(map(_is_type, get_args(hint)))


class _QuietSchema(GenerateJsonSchema):
    # A default that JSON cannot express (a sentinel) is left out of the schema.
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - declared so by pydantic


class _RecursiveError(Exception):
    """A type that contains itself cannot be written without references."""


def _tidy(schema: dict[str, Json]) -> dict[str, Json]:
    """The schema without titles and, unless a type contains itself, without references."""
    definitions = cast(dict[str, Json], schema.get("$defs", {}))
    try:
        return _walk({key: value for key, value in schema.items() if key != "$defs"}, definitions, ())
    except _RecursiveError:
        return _walk(schema, None, ())


def _walk(node: Mapping[str, Json], definitions: Mapping[str, Json] | None, inside: tuple[str, ...]) -> dict[str, Json]:
    def visit(value: Json) -> Json:
        return _walk(value, definitions, inside) if isinstance(value, Mapping) else value

    tidy: dict[str, Json] = {}
    for key, value in node.items():
        if key in ("title", "discriminator"):
            continue
        if key == "$ref" and definitions is not None:
            name = str(value).removeprefix("#/$defs/")
            if name in inside:
                raise _RecursiveError
            tidy |= _walk(cast(Mapping[str, Json], definitions[name]), definitions, (*inside, name))
        elif key in ("properties", "$defs", "patternProperties"):
            tidy[key] = {name: visit(part) for name, part in cast(Mapping[str, Json], value).items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            tidy[key] = [visit(part) for part in cast(list[Json], value)]
        elif key in ("items", "additionalProperties", "propertyNames"):
            tidy[key] = visit(value)
        else:
            tidy[key] = value
    # `type` first, as models have seen it written.
    return {"type": tidy.pop("type"), **tidy} if "type" in tidy else tidy


def _describe(name: str, schema: Mapping[str, Json]) -> str:
    """`k: integer = 5`, as in the usage line that the model reads after a wrong call."""
    node = cast(Mapping[str, Mapping[str, Json]], schema["properties"])[name]
    default = f" = {json.dumps(node['default'], ensure_ascii=False)}" if "default" in node else ""
    optional = "" if default or name in cast(list[str], schema.get("required", [])) else " (optional)"
    return f"{name}: {_type_words(node)}{default}{optional}"


def _type_words(node: Mapping[str, Json]) -> str:
    if "enum" in node:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in cast(list[Json], node["enum"]))
    if "const" in node:
        return json.dumps(node["const"], ensure_ascii=False)
    for key in ("anyOf", "oneOf"):
        if key in node:
            return " | ".join(_type_words(part) for part in cast(list[Mapping[str, Json]], node[key]))
    if isinstance(items := node.get("items"), Mapping):
        return f"array of {_type_words(items)}"
    return str(node.get("type", "any"))


def _unsupported(tool: str, parameters: tuple[Parameter, ...], error: Exception) -> ToolError:
    for parameter in parameters:
        try:
            TypeAdapter(cast(type, parameter.annotation)).json_schema(schema_generator=_QuietSchema)
        except (PydanticUserError, TypeError):
            words = inspect.formatannotation(parameter.annotation)
            return ToolError(
                f"tool '{tool}': parameter '{parameter.name}' has type {words}, which JSON cannot carry; "
                "use str, int, float, bool, list, dict, Literal, an Enum, a dataclass or a pydantic model"
            )
    return ToolError(f"tool '{tool}' cannot be given a JSON schema: {str(error).splitlines()[0]}")
