"""The messages `check_env` plays: odd ones that a model may write, valid tool calls, final answers.

Built from the vocabulary alone: an environment is checked without a tokenizer or a chat template.
"""

import json
from collections.abc import Mapping, Sequence
from typing import cast

from turnwise.types import Json, Message, ToolCall, ToolSpec


def hostile_messages(tools: Sequence[ToolSpec]) -> list[tuple[str, Message]]:
    """What a model may write and an environment must answer in words, each with a name for findings."""
    texts = {
        "garbage text": "}{ <tool_call> ]] <answer> \x00 <|im_end|>",
        "empty text": "",
        "unicode text": "मौसम 🌩️ ‮ ﷽ é",
        "very long text": "left " * 20_000,
        "an answer in tags": "<answer>42</answer>",
    }
    calls = {
        "a malformed tool call": ToolCall(id="bad", name="", arguments="", problem="the closing tag is missing"),
        "a call of an unknown tool": ToolCall(id="unknown", name="no_such_tool", arguments="{}"),
    }
    for spec in tools:
        calls[f"a call of {spec.name} with broken JSON"] = ToolCall(id="json", name=spec.name, arguments='{"')
        calls[f"a call of {spec.name} with a list"] = ToolCall(id="list", name=spec.name, arguments="[1, 2]")
        calls[f"a call of {spec.name} with unknown arguments"] = ToolCall(
            id="extra", name=spec.name, arguments='{"no_such_argument": 1}'
        )
    spoken = [(what, Message(role="assistant", content=text)) for what, text in texts.items()]
    called = [(what, Message(role="assistant", content="", tool_calls=(call,))) for what, call in calls.items()]
    return [*called, *spoken]


def final_message() -> Message:
    """A final answer that is well formed and, most likely, wrong."""
    return Message(role="assistant", content="<answer>none of these</answer>")


def sample_call(spec: ToolSpec, call_id: str) -> ToolCall:
    """A call that the tool's own schema admits, as far as types go."""
    return ToolCall(id=call_id, name=spec.name, arguments=json.dumps(_example(spec.parameters)))


def _example(schema: Mapping[str, Json]) -> Json:
    if "default" in schema:
        return schema["default"]
    for key in ("enum", "examples"):
        if key in schema:
            return cast(Sequence[Json], schema[key])[0]
    if "const" in schema:
        return schema["const"]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _example(cast(Sequence[Mapping[str, Json]], schema[key])[0])
    match schema.get("type"):
        case "object":
            properties = cast(Mapping[str, Mapping[str, Json]], schema.get("properties", {}))
            return {name: _example(properties[name]) for name in cast(Sequence[str], schema.get("required", ()))}
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array":
            return []
        case "null":
            return None
        case _:
            return "one"
