"""The arguments of a tool whose JSON schema a server wrote.

Invariant: the model's JSON reaches the server as it was written; what the server's own schema forbids is answered here,
in words for the model.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, cast

from turnwise.tools.parameters import BadArgumentsError
from turnwise.types import Json

_SHOWN_ERRORS = 4
_MAX_ERROR_CHARS = 300


class SchemaArguments:
    """`SchemaArguments("add", schema).read('{"a": 1}')`."""

    def __init__(self, tool: str, schema: Mapping[str, Json]) -> None:
        properties = schema.get("properties")
        self.names = tuple(properties) if isinstance(properties, Mapping) else ()
        self._find_errors = _compile(schema)
        required = schema.get("required")
        needed = set(required) if isinstance(required, list | tuple) else set()
        words = (
            f"{name}: {_type_of(properties, name)}{'' if name in needed else ' (optional)'}" for name in self.names
        )
        self._usage = f"{tool}({', '.join(words)})"

    def read(self, arguments: str) -> dict[str, object]:
        """The keyword arguments; a BadArgumentsError where they are no JSON object or break the schema."""
        try:
            values = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise BadArgumentsError(f"the arguments are not valid JSON ({error}). Usage: {self._usage}") from None
        if not isinstance(values, dict):
            raise BadArgumentsError(f"the arguments must be one JSON object. Usage: {self._usage}")
        problems = [_explain(problem) for problem in self._find_errors(values)]
        if problems:
            more = f"; and {len(problems) - _SHOWN_ERRORS} more" if len(problems) > _SHOWN_ERRORS else ""
            raise BadArgumentsError(f"{'; '.join(problems[:_SHOWN_ERRORS])}{more}. Usage: {self._usage}")
        return values


class _Problem(Protocol):
    """What is used of `jsonschema.ValidationError`."""

    message: str
    absolute_path: Iterable[str | int]


def _compile(schema: Mapping[str, Json]) -> Callable[[object], Iterable[_Problem]]:
    """What in an instance breaks the schema: by `jsonschema`, which comes with `mcp`; a broken schema forbids nothing,
    and leaves the judgement to the server."""
    try:
        from jsonschema import SchemaError, validators
    except ImportError:
        return lambda instance: ()
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError:
        return lambda instance: ()
    return cast(Callable[[object], Iterable[_Problem]], kind(schema).iter_errors)


def _explain(problem: _Problem) -> str:
    path = ".".join(map(str, problem.absolute_path))
    message = problem.message[:_MAX_ERROR_CHARS]
    return f"argument '{path}' is wrong: {message}" if path else message


def _type_of(properties: Json, name: str) -> str:
    node = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(node, Mapping):
        return "any"
    if isinstance(options := node.get("enum"), list | tuple):
        return " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
    kind = node.get("type", "any")
    return " | ".join(map(str, kind)) if isinstance(kind, list | tuple) else str(kind)


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
