"""Messages in the shape of OpenAI's chat completions, there and back.

Invariant: whatever a model wrote reaches the environment, as a call or as words; what goes back as history is JSON that
strict servers take, with a call that nobody could read wrapped rather than dropped.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from turnwise.render.formats import parse_text
from turnwise.tools.tool import encodable
from turnwise.types import Json, Message, ToolCall

_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME: Final = 64


class NoCompletionError(Exception):
    """A reply that is no chat completion."""


def write_message(message: Message) -> dict[str, Json]:
    """A message as an endpoint reads it; thinking stays out, as its makers ask."""
    written: dict[str, Json] = {"role": message.role, "content": encodable(message.content)}
    if message.tool_calls:
        written["tool_calls"] = [_write_call(call) for call in message.tool_calls]
        written["content"] = written["content"] or None
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def read_completion(body: bytes, *, turn: int) -> Message:
    """The assistant's message in a reply; `turn` numbers the calls that the server did not number.

    Where the server sends plain text, calls in it are read as our own models write theirs.
    """
    said = _first_message(body)
    text = _read_text(said.get("content")) or _read_text(said.get("refusal"))
    parsed = parse_text(text)
    thought = _read_text(said.get("reasoning_content")) or _read_text(said.get("reasoning"))
    listed = said.get("tool_calls") or []
    if not isinstance(listed, list):
        raise NoCompletionError(f"its tool_calls are not a list: {json.dumps(listed)[:80]}")
    calls = tuple(_read_call(entry) for entry in listed)
    return Message(
        role="assistant",
        content=text if calls and parsed.tool_calls else parsed.content,
        thinking="\n".join(part for part in (thought.strip(), parsed.thinking) if part),
        tool_calls=_numbered(calls or tuple(dataclasses.replace(call, id="") for call in parsed.tool_calls), turn),
    )


def _first_message(body: bytes) -> Mapping[str, object]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise NoCompletionError("its reply is not JSON") from None
    try:
        message = data["choices"][0]["message"]
    except (LookupError, TypeError):
        message = None
    if not isinstance(message, Mapping):
        raise NoCompletionError("its reply is not a chat completion")
    return message


def _read_text(content: object) -> str:
    """Text as it is, or the text among the parts that some servers split a message into."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def _read_call(entry: object) -> ToolCall:
    outer = entry if isinstance(entry, Mapping) else {}
    function = outer.get("function")
    inner = function if isinstance(function, Mapping) else {}
    name, arguments, call_id = inner.get("name"), inner.get("arguments", ""), outer.get("id")
    if not isinstance(name, str):
        written = json.dumps(entry)
        return ToolCall(id="", name="", arguments=written, problem=f"the call names no function: {written[:80]}")
    return ToolCall(
        id=call_id if isinstance(call_id, str) else "",
        name=name,
        arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
    )


def _numbered(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Each call with an id of its own, by which its answer is sent."""
    seen: set[str] = set()
    numbered = []
    for place, call in enumerate(calls):
        own = call.id if call.id and call.id not in seen else f"call_{turn}_{place}"
        seen.add(own)
        numbered.append(dataclasses.replace(call, id=own))
    return tuple(numbered)


def _write_call(call: ToolCall) -> dict[str, Json]:
    name = _NOT_IN_A_NAME.sub("_", call.name)[:_LONGEST_NAME] or "unknown"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": _sound(call.arguments)}}


def _sound(arguments: str) -> str:
    """Some servers parse the arguments in a history, and refuse all of it where one of them is no JSON object."""
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return encodable(arguments) if whole else json.dumps({"unreadable": encodable(arguments)})
