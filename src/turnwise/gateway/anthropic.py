"""Anthropic's messages on the wire: a body to a request, an answer to a body or to server-sent events.

Invariant: what `openai.py` promises of parameters holds here too. Blocks become our messages one by one: a tool's
result is a message of its own, thinking stands apart from the text.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from pydantic import Field, JsonValue

from turnwise.gateway.chat import Answer, ChatRequest, ErrorKind, GatewayError, Reply
from turnwise.gateway.openai import Loose, find_overridden, make_tool, read_text, validate
from turnwise.types import Finish, Json, Message, ToolCall

_OVERRIDDEN: Final = ("temperature", "top_p", "top_k")
_IGNORED_BLOCKS: Final = ("redacted_thinking",)


class _Tool(Loose):
    name: str
    description: str | None = None
    input_schema: dict[str, JsonValue]


class _Message(Loose):
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, JsonValue]]


class _ToolChoice(Loose):
    type: str = "auto"


class _Body(Loose):
    messages: list[_Message] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    model: str = "turnwise"
    system: str | list[dict[str, JsonValue]] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


def read_request(body: bytes) -> ChatRequest:
    """The request that a body of `POST /v1/messages` makes; a `GatewayError` says what is wrong with it."""
    asked = validate(_Body, body)
    messages = [message for place, one in enumerate(asked.messages) for message in _read_message(one, place)]
    system = read_text(asked.system, "system")
    if system:
        messages.insert(0, Message(role="system", content=system))
    overridden = find_overridden(asked, _OVERRIDDEN)
    if asked.tool_choice is not None and asked.tool_choice.type != "auto":
        overridden.append("tool_choice")
    return ChatRequest(
        messages=tuple(messages),
        tools=tuple(make_tool(tool.name, tool.description, tool.input_schema) for tool in asked.tools or ()),
        max_tokens=asked.max_tokens,
        stop=tuple(filter(None, asked.stop_sequences or ())),
        stream=bool(asked.stream),
        model=asked.model,
        overridden=tuple(overridden),
    )


def _read_message(message: _Message, place: int) -> Iterator[Message]:
    """The messages that one of theirs holds: results of tools first, each by itself, then what was said."""
    where = f"messages.{place}.content"
    if isinstance(message.content, str):
        yield Message(role=message.role, content=message.content)
        return
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[ToolCall] = []
    results = 0
    for block in message.content:
        match block.get("type"):
            case "text":
                texts.append(_text(block, "text", where))
            case "thinking" if message.role == "assistant":
                thinking.append(_text(block, "thinking", where))
            case "tool_use" if message.role == "assistant":
                arguments = json.dumps(block.get("input"), ensure_ascii=False)
                calls.append(
                    ToolCall(id=_text(block, "id", where), name=_text(block, "name", where), arguments=arguments)
                )
            case "tool_result" if message.role == "user":
                results += 1
                yield Message(
                    role="tool", content=_result(block, where), tool_call_id=_text(block, "tool_use_id", where)
                )
            case kind if kind not in _IGNORED_BLOCKS:
                raise GatewayError(
                    ErrorKind.INVALID,
                    f"{where}: a block of type {kind!r} is not supported here; send text",
                    param=where,
                )
    if texts or thinking or calls or not results:
        yield Message(role=message.role, content="".join(texts), thinking="\n".join(thinking), tool_calls=tuple(calls))


def _text(block: Mapping[str, JsonValue], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise GatewayError(ErrorKind.INVALID, f"{where}: a block has no text under '{key}'", param=where)
    return value


def _result(block: Mapping[str, JsonValue], where: str) -> str:
    content = block.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return read_text(parts, where)


def write_answer(answer: Answer) -> dict[str, Json]:
    """The body of a `message`; this API has no choices, so there is one reply."""
    (reply,) = answer.replies
    return {
        **_head(answer),
        "content": _blocks(reply),
        "stop_reason": _stop_reason(reply),
        "stop_sequence": reply.stop_string,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.completion_tokens},
    }


def write_stream(answer: Answer) -> Iterator[bytes]:
    """The events of a stream: `message_start`, each block from start to stop, `message_delta`, `message_stop`."""
    (reply,) = answer.replies
    empty: dict[str, Json] = {"content": [], "stop_reason": None, "stop_sequence": None}
    usage: dict[str, Json] = {"input_tokens": answer.prompt_tokens, "output_tokens": 1}
    yield _event("message_start", {"message": {**_head(answer), **empty, "usage": usage}})
    for index, block in enumerate(_blocks(reply)):
        opening, deltas = _split(block)
        yield _event("content_block_start", {"index": index, "content_block": opening})
        for delta in deltas:
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    stopped: dict[str, Json] = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop_string}
    yield _event("message_delta", {"delta": stopped, "usage": {"output_tokens": answer.completion_tokens}})
    yield _event("message_stop", {})


def write_error(error: GatewayError) -> dict[str, Json]:
    """The body of a refusal."""
    types = {
        ErrorKind.NO_SESSION: "authentication_error",
        ErrorKind.NOT_FOUND: "not_found_error",
        ErrorKind.TOO_LARGE: "request_too_large",
        ErrorKind.BUSY: "rate_limit_error",
        ErrorKind.FAILED: "api_error",
    }
    # The words by which clients of this API know that the context is full.
    message = f"prompt is too long: {error.message}" if error.kind is ErrorKind.CONTEXT_FULL else error.message
    fields: dict[str, Json] = {"type": types.get(error.kind, "invalid_request_error"), "message": message}
    return {"type": "error", "error": fields}


def _head(answer: Answer) -> dict[str, Json]:
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": answer.request.model}


def _blocks(reply: Reply) -> list[dict[str, Json]]:
    message = reply.message
    blocks: list[dict[str, Json]] = []
    if message.thinking:
        blocks.append({"type": "thinking", "thinking": message.thinking, "signature": f"turnwise-v{reply.version}"})
    if message.content or not message.tool_calls:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


def _split(block: Mapping[str, Json]) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """A block as it starts, empty, and the deltas that fill it."""
    match block["type"]:
        case "thinking":
            deltas: list[dict[str, Json]] = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    written = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _stop_reason(reply: Reply) -> str:
    if reply.message.tool_calls:
        return "tool_use"
    if reply.stop_string is not None:
        return "stop_sequence"
    return "max_tokens" if reply.finish is Finish.LENGTH else "end_turn"


def _event(kind: str, data: Mapping[str, Json]) -> bytes:
    written = json.dumps({"type": kind, **data}, ensure_ascii=False).encode("utf-8", "replace")
    return b"event: " + kind.encode() + b"\ndata: " + written + b"\n\n"
