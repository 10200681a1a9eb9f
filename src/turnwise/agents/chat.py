"""Messages to and from the JSON of OpenAI's chat completions.

Invariant: all that a model wrote reaches the environment, as a call or as text; the history sent back is JSON that
strict servers accept, with unreadable calls wrapped rather than dropped.
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
    """The reply is not a chat completion."""


def write_message(message: Message) -> dict[str, Json]:
    """A message as an endpoint reads it, without its thinking: vendors ask for history without it."""
    written: dict[str, Json] = {"role": message.role, "content": encodable(message.content)}
    if message.tool_calls:
        written["tool_calls"] = [_write_call(call) for call in message.tool_calls]
        written["content"] = written["content"] or None
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def read_completion(body: bytes, *, turn: int) -> Message:
    """The assistant's message in a reply; `turn` goes into the ids of calls that the server gave none.

    Tool calls within plain text are parsed as the policy's are.
    """
    message = _first_message(body)
    text = _read_text(message.get("content")) or _read_text(message.get("refusal"))
    parsed = parse_text(text)
    thought = _read_text(message.get("reasoning_content")) or _read_text(message.get("reasoning"))
    listed = message.get("tool_calls") or []
    if not isinstance(listed, list):
        raise NoCompletionError(f"its tool_calls are not a list: {json.dumps(listed)[:80]}")
    calls = tuple(_read_call(entry) for entry in listed)
    return Message(
        role="assistant",
        content=text if calls and parsed.tool_calls else parsed.content,
        thinking="\n".join(part for part in (thought.strip(), parsed.thinking) if part),
        tool_calls=_with_ids(calls or tuple(dataclasses.replace(call, id="") for call in parsed.tool_calls), turn),
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


def _with_ids(calls: Sequence[ToolCall], turn: int) -> tuple[ToolCall, ...]:
    """Each call with an id of its own, which the tool's answer refers to."""
    seen: set[str] = set()
    identified = []
    for place, call in enumerate(calls):
        own = call.id if call.id and call.id not in seen else f"call_{turn}_{place}"
        seen.add(own)
        identified.append(dataclasses.replace(call, id=own))
    return tuple(identified)


def _write_call(call: ToolCall) -> dict[str, Json]:
    name = _NOT_IN_A_NAME.sub("_", call.name)[:_LONGEST_NAME] or "unknown"
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": name, "arguments": _valid_arguments(call.arguments)},
    }


def _valid_arguments(arguments: str) -> str:
    """Some servers parse the arguments in a history, and reject it where one of them is not a JSON object."""
    try:
        whole = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        whole = False
    return encodable(arguments) if whole else json.dumps({"unreadable": encodable(arguments)})
