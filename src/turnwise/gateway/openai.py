"""OpenAI's chat completions on the wire: a body to a request, an answer to a body or to server-sent events.

Invariant: a parameter is followed, or named in `ChatRequest.overridden`, or refused where following it would make the
recorded logprobs those of another distribution. Unknown parameters are ignored, as vendors' servers do.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from turnwise.gateway.chat import Answer, ChatRequest, ErrorKind, GatewayError, Reply
from turnwise.types import Finish, Json, Message, ToolCall, ToolSpec

Body = TypeVar("Body", bound="Loose")

MOST_CHOICES: Final = 128
ROLES: Final[Mapping[str, Literal["system", "user", "assistant", "tool"]]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_OVERRIDDEN: Final = ("temperature", "top_p", "top_k", "min_p", "seed", "top_logprobs", "parallel_tool_calls")
"""What the rollout decides, or what is not enforced."""
_REFUSED: Final[Mapping[str, tuple[JsonValue, ...]]] = {
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "functions": (None, []),
    "audio": (None,),
}
"""What would falsify logprobs or is not understood, with the values that ask for nothing."""
_NO_SCHEMA: Final[Mapping[str, Json]] = {"type": "object", "properties": {}}


class Loose(BaseModel):
    """A part of a request; keys that we do not know are kept apart."""

    model_config = ConfigDict(extra="allow", frozen=True)


class _Function(Loose):
    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None


class _Tool(Loose):
    type: Literal["function"]
    function: _Function


class _Called(Loose):
    name: str
    arguments: str


class _Call(Loose):
    id: str
    function: _Called


class _Message(Loose):
    role: str
    content: str | list[dict[str, JsonValue]] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None


class _StreamOptions(Loose):
    include_usage: bool = False


class _Body(Loose):
    messages: list[_Message] = Field(min_length=1)
    model: str = "turnwise"
    tools: list[_Tool] | None = None
    tool_choice: JsonValue = None
    response_format: dict[str, JsonValue] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None


def read_request(body: bytes) -> ChatRequest:
    """The request that a body of `POST /v1/chat/completions` makes; a `GatewayError` says what is wrong with it."""
    asked = validate(_Body, body)
    limits = [limit for limit in (asked.max_tokens, asked.max_completion_tokens) if limit is not None]
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    overridden = find_overridden(asked, _OVERRIDDEN)
    if asked.tool_choice not in (None, "auto"):
        overridden.append("tool_choice")
    if asked.response_format is not None and asked.response_format.get("type") != "text":
        overridden.append("response_format")
    return ChatRequest(
        messages=tuple(_read_message(message, place) for place, message in enumerate(asked.messages)),
        tools=tuple(
            make_tool(tool.function.name, tool.function.description, tool.function.parameters)
            for tool in asked.tools or ()
        ),
        max_tokens=min(limits, default=None),
        stop=tuple(filter(None, stop)),
        n=asked.n or 1,
        stream=bool(asked.stream),
        stream_usage=asked.stream_options is not None and asked.stream_options.include_usage,
        logprobs=bool(asked.logprobs),
        model=asked.model,
        overridden=tuple(overridden),
    )


def validate(kind: type[Body], body: bytes) -> Body:
    """A body by its model; refuses parameters that would falsify logprobs."""
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        raise GatewayError(ErrorKind.INVALID, f"{where}: {first['msg']}", param=where) from None
    for name, nothing in _REFUSED.items():
        given = (asked.model_extra or {}).get(name)
        if given not in nothing:
            raise GatewayError(
                ErrorKind.INVALID,
                f"{name}: not supported, because the recorded logprobs would be those of another distribution; "
                "remove it",
                param=name,
            )
    return asked


def find_overridden(asked: Loose, names: tuple[str, ...]) -> list[str]:
    """Those of the named parameters that the request gives."""
    extra = asked.model_extra or {}
    return [name for name in names if extra.get(name) is not None]


def make_tool(name: str, description: str | None, parameters: Mapping[str, JsonValue] | None) -> ToolSpec:
    return ToolSpec(name=name, description=description or "", parameters=parameters or _NO_SCHEMA)


def read_text(content: str | list[dict[str, JsonValue]] | None, where: str) -> str:
    """Text, or the text of parts; an image or other part that the model cannot read is refused."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise GatewayError(
                ErrorKind.INVALID,
                f"{where}: a part of type {part.get('type')!r} is not supported; send text",
                param=where,
            )
        texts.append(text)
    return "".join(texts)


def _read_message(message: _Message, place: int) -> Message:
    where = f"messages.{place}"
    if message.role not in ROLES:
        raise GatewayError(
            ErrorKind.INVALID, f"{where}.role: {message.role!r} is none of {', '.join(ROLES)}", param=f"{where}.role"
        )
    role = ROLES[message.role]
    calls = tuple(
        ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in message.tool_calls or ()
    )
    return Message(
        role=role,
        content=read_text(message.content, f"{where}.content"),
        thinking=message.reasoning_content or "" if role == "assistant" else "",
        tool_calls=calls if role == "assistant" else (),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        name=message.name if role == "tool" else None,
    )


def write_answer(answer: Answer) -> dict[str, Json]:
    """The body of a `chat.completion`."""
    return {
        **_head(answer, "chat.completion"),
        "choices": [_write_choice(reply, index, answer) for index, reply in enumerate(answer.replies)],
        "usage": _usage(answer),
    }


def write_stream(answer: Answer) -> Iterator[bytes]:
    """The events of a stream of `chat.completion.chunk`, `[DONE]` the last."""
    head = _head(answer, "chat.completion.chunk")
    usage: dict[str, Json] = {"usage": None} if answer.request.stream_usage else {}
    for index, reply in enumerate(answer.replies):
        for choice in _deltas(reply, index, answer):
            yield _event({**head, "choices": [choice], **usage})
    if answer.request.stream_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


def write_error(error: GatewayError) -> dict[str, Json]:
    """The body of a refusal."""
    types = {ErrorKind.BUSY: "rate_limit_error", ErrorKind.FAILED: "server_error"}
    codes = {
        ErrorKind.CONTEXT_FULL: "context_length_exceeded",
        ErrorKind.BUSY: "rate_limit_exceeded",
        ErrorKind.NO_SESSION: "invalid_api_key",
        ErrorKind.NOT_FOUND: "not_found",
    }
    fields: dict[str, Json] = {
        "message": error.message,
        "type": types.get(error.kind, "invalid_request_error"),
        "param": error.param or ("messages" if error.kind is ErrorKind.CONTEXT_FULL else None),
        "code": codes.get(error.kind),
    }
    return {"error": fields}


def _head(answer: Answer, kind: str) -> dict[str, Json]:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": answer.created,
        "model": answer.request.model,
        "system_fingerprint": f"turnwise-v{answer.replies[0].version}",
    }


def _usage(answer: Answer) -> dict[str, Json]:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def finish_reason(reply: Reply) -> str:
    if reply.message.tool_calls:
        return "tool_calls"
    return "length" if reply.finish is Finish.LENGTH and reply.stop_string is None else "stop"


def _write_choice(reply: Reply, index: int, answer: Answer) -> dict[str, Json]:
    message: dict[str, Json] = {"role": "assistant", "content": reply.message.content, "refusal": None}
    if reply.message.thinking:
        message["reasoning_content"] = reply.message.thinking
    if reply.message.tool_calls:
        message["content"] = reply.message.content or None
        message["tool_calls"] = [_write_call(call) for call in reply.message.tool_calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _write_logprobs(reply) if answer.request.logprobs else None,
        "finish_reason": finish_reason(reply),
    }


def _deltas(reply: Reply, index: int, answer: Answer) -> Iterator[dict[str, Json]]:
    """The choices of a stream's chunks: role, thinking, text, calls, then the reason it finished."""

    def choice(delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

    message = reply.message
    yield choice({"role": "assistant", "content": None if message.tool_calls and not message.content else ""})
    if message.thinking:
        yield choice({"reasoning_content": message.thinking})
    if message.content:
        logprobs = _write_logprobs(reply) if answer.request.logprobs else None
        yield {**choice({"content": message.content}), "logprobs": logprobs}
    for place, call in enumerate(message.tool_calls):
        opening: dict[str, Json] = {
            "index": place,
            **_write_call(call),
            "function": {"name": call.name, "arguments": ""},
        }
        yield choice({"tool_calls": [opening]})
        yield choice({"tool_calls": [{"index": place, "function": {"arguments": call.arguments}}]})
    yield choice({}, finish_reason(reply))


def _write_call(call: ToolCall) -> dict[str, Json]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _write_logprobs(reply: Reply) -> dict[str, Json]:
    """Every sampled token, thinking and calls included; each is named by its id, as its text may be half a letter."""
    content: list[Json] = [
        {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(reply.token_ids, reply.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _event(data: Mapping[str, Json]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode("utf-8", "replace") + b"\n\n"
