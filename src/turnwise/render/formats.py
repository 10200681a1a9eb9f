"""The assistant's raw text to a message and back: Hermes and Llama 3 tool calls, and thinking.

Calls are read without Hermes' tags, too, by themselves or in a fenced block, as Qwen2.5-Coder writes them.

Invariant: `parse_text` never raises and never drops a word. What it cannot read becomes a `ToolCall` that holds
the text as written and a `problem` the model can act on, or it stays in `content`.
"""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NoReturn

from turnwise.types import Json, Message, ToolCall


class CallFormat(StrEnum):
    """How a model writes its tool calls."""

    HERMES = "hermes"
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, words around them."""
    LLAMA3 = "llama3"
    """`{"name": ..., "parameters": {...}}` and nothing else in the reply."""


_OPENING: Final = re.compile(r"<think>|<tool_call>")
_CALL_TAG: Final = re.compile(r"</?tool_call>")
_FENCED: Final = re.compile(r"```\w*[ \t]*\n(?P<body>.*?)```", re.DOTALL)
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_KEYS: Final = frozenset({"name", "arguments", "parameters", "type", "id"})
_LONGEST_QUOTE: Final = 80
_SHAPES: Final = {
    CallFormat.HERMES: '<tool_call>{"name": "...", "arguments": {...}}</tool_call>',
    CallFormat.LLAMA3: '{"name": "...", "parameters": {...}}',
}


def parse_text(text: str) -> Message:
    """Reads an assistant's raw text: thinking and tool calls apart, everything else is content.

    `<think>Look.</think><tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>` has thinking
    `Look.` and one call, `call_0`, with the arguments `{"query": "Oslo"}`. White space at the edges goes.
    """
    texts: list[str] = []
    thought: list[str] = []
    calls: list[ToolCall] = []
    thinking_unclosed = False
    position = 0
    while opening := _OPENING.search(text, position):
        texts.append(text[position : opening.start()])
        if opening.group() == "<think>":
            thinking, position, thinking_unclosed = _read_thinking(text, opening.end())
            thought.append(thinking)
        else:
            call, position = _read_call(text, opening.end(), f"call_{len(calls)}", thinking_unclosed)
            calls.append(call)
    texts.append(text[position:])
    content = _join(texts)
    if not calls:
        content, calls = _read_untagged(content)
    return Message(role="assistant", content=content, thinking=_join(thought), tool_calls=tuple(calls))


def format_call(name: str, arguments: Mapping[str, Json] | str) -> str:
    """A call as Hermes writes it; `arguments` may be raw JSON text, which is kept as it is."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return _in_tags(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {raw}}}')


def format_message(message: Message, calls: CallFormat = CallFormat.HERMES) -> str:
    """The raw text of an assistant's message, the reverse of `parse_text`; a malformed call stays as it was."""
    thinking = f"<think>\n{message.thinking}\n</think>\n\n" if message.thinking else ""
    if calls is CallFormat.LLAMA3 and len(message.tool_calls) == 1 and not message.content:
        (call,) = message.tool_calls
        name = json.dumps(call.name, ensure_ascii=False)
        bare = call.arguments if call.problem else f'{{"name": {name}, "parameters": {call.arguments}}}'
        return thinking + bare
    written = [
        _in_tags(call.arguments) if call.problem else format_call(call.name, call.arguments)
        for call in message.tool_calls
    ]
    return thinking + "\n".join([message.content, *written] if message.content else written)


def _read_thinking(text: str, start: int) -> tuple[str, int, bool]:
    """The thinking that begins at `start`, where reading goes on, and whether its end is missing."""
    close = text.find("</think>", start)
    if close >= 0:
        return text[start:close], close + len("</think>"), False
    call = text.find("<tool_call>", start)
    end = call if call >= 0 else len(text)
    return text[start:end], end, True


def _read_call(text: str, start: int, call_id: str, thinking_unclosed: bool) -> tuple[ToolCall, int]:
    """The call whose opening tag ends at `start`, and where reading goes on."""
    name, arguments, reason = "", "", ""
    json_end = start
    try:
        members, json_end = _read_members(text, start)
        name, arguments, reason = _judge(members)
    except _Unreadable as error:
        reason = str(error)
    # A closing tag inside a JSON string is part of the string, so the search begins after the object.
    tag = _CALL_TAG.search(text, json_end)
    if tag is not None and tag.group() == "</tool_call>":
        body, position = text[start : tag.start()], tag.end()
        if not reason and text[json_end : tag.start()].strip():
            reason = f"more text follows the JSON object: {_quote(text[json_end : tag.start()])}"
    else:
        position = json_end if json_end > start else tag.start() if tag else len(text)
        body = text[start:position]
        reason = reason or "</tool_call> is missing"
    if thinking_unclosed:
        reason = reason or "it stands inside <think>; write </think> before it"
    if not reason:
        return ToolCall(id=call_id, name=name, arguments=arguments), position
    problem = _explain(reason, body, CallFormat.HERMES)
    return ToolCall(id=call_id, name=name, arguments=body.strip(), problem=problem), position


def _read_untagged(content: str) -> tuple[str, list[ToolCall]]:
    """Content without the calls that stand in it without tags, and these: all of it, or what is in fenced blocks."""
    if call := _read_bare_call(content):
        return "", [call]
    if alone := _read_objects(content):
        return "", alone
    calls: list[ToolCall] = []

    def take(block: re.Match[str]) -> str:
        found = _read_objects(block["body"], len(calls)) or []
        calls.extend(found)
        return "" if found else block.group()

    left = _FENCED.sub(take, content)
    return (left.strip() if calls else content), calls


def _read_objects(text: str, first: int = 0) -> list[ToolCall] | None:
    """The calls of a text that is nothing but JSON objects with a name and arguments; None where it is more or less."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    calls: list[ToolCall] = []
    position = 0
    while position < len(text):
        try:
            members, position = _read_members(text, position)
        except _Unreadable:
            return None
        name, arguments, reason = _judge(members)
        if reason:
            return None
        calls.append(ToolCall(id=f"call_{first + len(calls)}", name=name, arguments=arguments))
        position = _skip_blank(text, position)
        if text.startswith(",", position):
            position = _skip_blank(text, position + 1)
    return calls or None


def _read_bare_call(content: str) -> ToolCall | None:
    """Llama 3's call, where the whole content is one; any other text is no call and not malformed either."""
    body = content.removeprefix("<|python_tag|>")
    if not body.startswith("{"):
        return None
    try:
        members, end = _read_members(body, 0)
    except _Unreadable:
        return None
    if not {"name", "parameters"} <= members.keys() or body[end:].strip():
        return None
    name, arguments, reason = _judge(members)
    if not reason:
        return ToolCall(id="call_0", name=name, arguments=arguments)
    problem = _explain(reason, body, CallFormat.LLAMA3)
    return ToolCall(id="call_0", name=name, arguments=body, problem=problem)


def _judge(members: Mapping[str, str]) -> tuple[str, str, str]:
    """A call's name, the raw text of its arguments, and what is wrong with it (empty when nothing is)."""
    if "name" not in members:
        return "", "", 'the JSON object has no "name"'
    name = json.loads(members["name"])
    # Unprintable covers lone surrogates, which no tokenizer takes.
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return "", "", f'"name" must be the name of a tool, not {_quote(members["name"])}'
    if unknown := members.keys() - _KEYS:
        return name, "", f'{_quote(min(unknown))} stands beside "arguments"; a tool\'s arguments go inside it'
    given = [key for key in ("arguments", "parameters") if key in members]
    if len(given) != 1:
        return name, "", 'it has both "arguments" and "parameters"' if given else 'the JSON object has no "arguments"'
    raw = members[given[0]]
    if raw.startswith('"'):
        raw = _unpack(raw)
    if not raw.startswith("{"):
        return name, "", f'"{given[0]}" must be a JSON object, not {_quote(members[given[0]])}'
    return name, raw, ""


def _unpack(raw: str) -> str:
    """The JSON object inside a JSON string, or the string as it is when there is none in it."""
    inner: str = json.loads(raw).strip()
    try:
        _, end = _read_members(inner, 0)
    except _Unreadable:
        return raw
    # A lone surrogate is legal as an escape only; written out, it could not be encoded.
    return inner.encode("utf-8", "backslashreplace").decode() if end == len(inner) else raw


class _Unreadable(ValueError):
    """Text that is no JSON object, and why, in words for the model."""


def _reject_constant(_: str) -> NoReturn:
    raise ValueError


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant)


def _read_members(text: str, start: int) -> tuple[dict[str, str], int]:
    """The values of the JSON object at `start` as raw text, by key, and where the object ends."""
    start = _skip_blank(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
        if not isinstance(value, dict):
            raise _Unreadable(f"it is not a JSON object but {_quote(text[start:end])}")
        return _split_members(text, start), end
    except _Unreadable:
        raise
    except json.JSONDecodeError as error:
        raise _Unreadable(f"it is not valid JSON ({error.msg} at character {error.pos - start + 1})") from None
    except RecursionError:
        raise _Unreadable("its JSON is nested too deeply") from None
    except ValueError:
        # NaN and Infinity, which JSON does not have, and integers of more digits than Python reads.
        raise _Unreadable("it holds a number that is not JSON") from None


def _split_members(text: str, start: int) -> dict[str, str]:
    """`{"name": "f", "arguments": {"x": 1}}` is `{"name": '"f"', "arguments": '{"x": 1}'}`; the text is valid."""
    members: dict[str, str] = {}
    position = _skip_blank(text, start + 1)
    while text[position] != "}":
        key, colon = _DECODER.raw_decode(text, position)
        value_start = _skip_blank(text, _skip_blank(text, colon) + 1)
        _, value_end = _DECODER.raw_decode(text, value_start)
        if key in members:
            raise _Unreadable(f"it has the key {_quote(key)} twice")
        members[key] = text[value_start:value_end]
        position = _skip_blank(text, value_end)
        if text[position] == ",":
            position = _skip_blank(text, position + 1)
    return members


def _skip_blank(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    assert blank is not None, "the pattern matches the empty string"
    return blank.end()


def _explain(reason: str, body: str, shape: CallFormat) -> str:
    return f"{reason}, in {_quote(body)}; write {_SHAPES[shape]}"


def _quote(text: str) -> str:
    line = " ".join(text.split())
    short = line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 3] + "..."
    return f"`{short.encode('utf-8', 'backslashreplace').decode()}`"


def _in_tags(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def _join(parts: list[str]) -> str:
    return "\n".join(part for part in map(str.strip, parts) if part)
