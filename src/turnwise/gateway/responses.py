"""OpenAI's responses on the wire, without their state: the whole input comes with every request.

Invariant: what `openai.py` promises of parameters holds here too. Items become our messages: a reply's text and its
calls, which are items of their own, are one message of the assistant.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from pydantic import Field, JsonValue

from turnwise.gateway.chat import Answer, ChatRequest, ErrorKind, GatewayError, Reply
from turnwise.gateway.openai import ROLES, Loose, find_overridden, make_tool, read_text, validate
from turnwise.types import Finish, Json, Message, ToolCall

_OVERRIDDEN: Final = ("temperature", "top_p", "top_logprobs", "parallel_tool_calls")
_STATE: Final = ("previous_response_id", "conversation", "prompt", "background")
"""What would need a server that remembers."""
_IGNORED_ITEMS: Final = ("reasoning", "item_reference")


class _Tool(Loose):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None


class _Body(Loose):
    input: str | list[dict[str, JsonValue]] = Field(min_length=1)
    model: str = "turnwise"
    instructions: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: JsonValue = None
    text: dict[str, JsonValue] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = None


def read_request(body: bytes) -> ChatRequest:
    """The request that a body of `POST /v1/responses` makes; a `GatewayError` says what is wrong with it."""
    asked = validate(_Body, body)
    for name in find_overridden(asked, _STATE):
        if (asked.model_extra or {})[name]:
            raise GatewayError(
                ErrorKind.INVALID, f"{name}: not supported; send the whole conversation as input", param=name
            )
    text = asked.input if isinstance(asked.input, str) else None
    said: list[dict[str, JsonValue]] = [] if text is None else [{"role": "user", "content": text}]
    items = said or [item for item in asked.input if isinstance(item, dict)]
    messages = _join_replies([one for place, item in enumerate(items) for one in _read_item(item, f"input.{place}")])
    if asked.instructions:
        messages.insert(0, Message(role="system", content=asked.instructions))
    overridden = find_overridden(asked, _OVERRIDDEN)
    if asked.tool_choice not in (None, "auto"):
        overridden.append("tool_choice")
    written = (asked.text or {}).get("format")
    if isinstance(written, dict) and written.get("type") != "text":
        overridden.append("response_format")
    return ChatRequest(
        messages=tuple(messages),
        tools=tuple(make_tool(tool.name, tool.description, tool.parameters) for tool in asked.tools or ()),
        max_tokens=asked.max_output_tokens,
        stream=bool(asked.stream),
        model=asked.model,
        overridden=tuple(overridden),
    )


def _read_item(item: Mapping[str, JsonValue], where: str) -> Iterator[Message]:
    match item.get("type", "message"):
        case "message":
            role, content = item.get("role"), item.get("content")
            if not isinstance(role, str) or role not in ROLES:
                raise GatewayError(
                    ErrorKind.INVALID, f"{where}.role: {role!r} is none of {', '.join(ROLES)}", param=where
                )
            parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else content
            text = read_text(parts if isinstance(parts, str | list) else None, f"{where}.content")
            yield Message(role=ROLES[role], content=text)
        case "function_call":
            call_id, name, arguments = (str(item.get(key)) for key in ("call_id", "name", "arguments"))
            call = ToolCall(id=call_id, name=name, arguments=arguments)
            yield Message(role="assistant", content="", tool_calls=(call,))
        case "function_call_output":
            output = item.get("output")
            parts = [part for part in output if isinstance(part, dict)] if isinstance(output, list) else str(output)
            yield Message(role="tool", content=read_text(parts, where), tool_call_id=str(item.get("call_id")))
        case kind if kind not in _IGNORED_ITEMS:
            raise GatewayError(ErrorKind.INVALID, f"{where}: an item of type {kind!r} is not supported", param=where)


def _join_replies(messages: list[Message]) -> list[Message]:
    """A reply's text and each of its calls are items of their own; together they are one message."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined else None
        if message.tool_calls and before is not None and before.role == "assistant":
            joined[-1] = dataclasses.replace(before, tool_calls=(*before.tool_calls, *message.tool_calls))
        else:
            joined.append(message)
    return joined


def write_answer(answer: Answer) -> dict[str, Json]:
    """The body of a `response`; this API has no choices, so there is one reply."""
    (reply,) = answer.replies
    return _response(answer, _items(answer, reply), "incomplete" if reply.finish is Finish.LENGTH else "completed")


def write_stream(answer: Answer) -> Iterator[bytes]:
    """The events of a stream: created, each item from added to done, completed."""
    (reply,) = answer.replies
    for number, (kind, data) in enumerate(_events(answer, reply)):
        event = {"type": kind, "sequence_number": number, **data}
        yield f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


def _events(answer: Answer, reply: Reply) -> Iterator[tuple[str, dict[str, Json]]]:
    started = _response(answer, [], "in_progress")
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(_items(answer, reply)):
        at: dict[str, Json] = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Json] = {"content": []} if item["type"] == "message" else {}
        empty = {"arguments": ""} if item["type"] == "function_call" else empty
        yield "response.output_item.added", {"output_index": index, "item": {**item, **empty, "status": "in_progress"}}
        if item["type"] == "message":
            text = reply.message.content
            part: dict[str, Json] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            inner: dict[str, Json] = {**at, "content_index": 0}
            yield "response.content_part.added", {**inner, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**inner, "delta": text, "logprobs": []}
            yield "response.output_text.done", {**inner, "text": text, "logprobs": []}
            yield "response.content_part.done", {**inner, "part": part}
        elif item["type"] == "function_call":
            yield "response.function_call_arguments.delta", {**at, "delta": item["arguments"]}
            done: dict[str, Json] = {"arguments": item["arguments"], "name": item["name"]}
            yield "response.function_call_arguments.done", {**at, **done}
        yield "response.output_item.done", {"output_index": index, "item": item}
    whole = write_answer(answer)
    yield f"response.{whole['status']}", {"response": whole}


def _items(answer: Answer, reply: Reply) -> list[dict[str, Json]]:
    message = reply.message
    items: list[dict[str, Json]] = []
    if message.thinking:
        summary: Json = [{"type": "summary_text", "text": message.thinking}]
        items.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": summary, "status": "completed"})
    if message.content or not message.tool_calls:
        text: Json = [{"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}]
        said: dict[str, Json] = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "content": text}
        items.append({**said, "status": "completed"})
    for place, call in enumerate(message.tool_calls):
        called: dict[str, Json] = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{answer.id}_{place}", **called, "status": "completed"})
    return items


def _response(answer: Answer, items: list[dict[str, Json]], status: str) -> dict[str, Json]:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    usage: dict[str, Json] = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": answer.request.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        "usage": usage if status != "in_progress" else None,
    }
