"""Text to OpenEnv's actions and its observations to text.

Invariant: what the agent wrote is an action or a reason, in words for the agent, why it is none.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from turnwise.errors import EnvError
from turnwise.types import Json, ToolSpec

_LEFT_OUT = ("metadata", "done", "reward")
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_FIELD = re.compile(r"\{([A-Za-z_][\w.]*)\}")


class UnreadableError(Exception):
    """Text that is no action; the reason is for the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionReader:
    """Makes actions of text, by the field that the text is for, or of tool calls, by the whole schema."""

    schema: Mapping[str, Json]
    """Of the action, without its metadata."""
    field: str | None
    """The field that takes the agent's text; None: the agent writes a JSON object."""
    pattern: re.Pattern[str] | None
    """Of the text, the first group of the last match counts."""
    fixed: Mapping[str, Json]
    """Fields that every action has."""

    @property
    def tool(self) -> ToolSpec:
        """The action as a tool."""
        return ToolSpec(name="act", description="Acts in the environment.", parameters=self.schema)

    def read(self, text: str) -> dict[str, Json]:
        """The action that the text means."""
        if self.pattern is not None:
            found = self.pattern.findall(text)
            if not found:
                raise UnreadableError(f"your answer has no {self.pattern.pattern}")
            text = found[-1] if isinstance(found[-1], str) else found[-1][0]
        if self.field is None:
            return {**self.fixed, **_read_object(text)}
        return {**self.fixed, self.field: _read_value(self.field, _property(self.schema, self.field), text.strip())}

    def read_call(self, arguments: str) -> dict[str, Json]:
        """The action that a call of the tool means; the server checks it."""
        return {**self.fixed, **_read_object(arguments)}


def make_reader(
    schema: Mapping[str, Json], *, field: str | None, pattern: str | None, fixed: Mapping[str, Json]
) -> ActionReader:
    """A reader for a server's schema of actions; `field` may be left out where there is but one to fill."""
    properties = schema.get("properties")
    named = dict(properties) if isinstance(properties, Mapping) else {}
    for name in ("metadata", *fixed):
        named.pop(name, None)
    for wanted in filter(None, (field, *fixed)):
        if isinstance(properties, Mapping) and wanted not in properties:
            raise EnvError(f"OpenEnv: its actions have no field '{wanted}'; they have: {', '.join(named) or 'none'}")
    required = [name for name in cast(Sequence[str], schema.get("required", ())) if name in named]
    chosen = field or (required[0] if len(required) == 1 else next(iter(named)) if len(named) == 1 else None)
    try:
        compiled = re.compile(pattern, re.DOTALL) if pattern else None
    except re.error as error:
        raise EnvError(f"OpenEnv: pattern is no regular expression: {error}") from None
    shown: dict[str, Json] = {**schema, "type": "object", "properties": named, "required": required}
    shown.pop("title", None)
    return ActionReader(schema=shown, field=chosen, pattern=compiled, fixed=fixed)


def show_observation(observation: Mapping[str, Json], template: str | None) -> str:
    """An observation as text: by `{field}` and `{field.inner}` of a template, or else its one text, or JSON of it."""
    if template is not None:
        return _FIELD.sub(lambda match: _as_text(_look_up(observation, match.group(1))), template)
    fields = {name: value for name, value in observation.items() if name not in _LEFT_OUT and value is not None}
    if len(fields) == 1:
        return _as_text(next(iter(fields.values())))
    return json.dumps(fields, ensure_ascii=False)


def _property(schema: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    properties = schema.get("properties")
    node = properties.get(name) if isinstance(properties, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _read_value(name: str, node: Mapping[str, Json], text: str) -> Json:
    """The text as the field's type: a number of an integer field, JSON of an object's."""
    kind = node.get("type", "string")
    if kind == "string" or "anyOf" in node:
        return text
    try:
        value: Json = json.loads(text)
    except ValueError:
        raise UnreadableError(f"'{text[:80]}' is no {kind}, which {name} is") from None
    wanted = _TYPES.get(str(kind), (object,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "boolean"):
        raise UnreadableError(f"'{text[:80]}' is no {kind}, which {name} is")
    return value


def _read_object(text: str) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError("write the action as one JSON object") from None
    if not isinstance(value, dict):
        raise UnreadableError("write the action as one JSON object")
    return value


def _look_up(observation: Mapping[str, Json], path: str) -> Json:
    value: Json = observation
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
