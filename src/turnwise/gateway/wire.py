"""The APIs that the gateway speaks, each as the four functions that the server needs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from turnwise.gateway import anthropic, openai, responses
from turnwise.gateway.chat import Answer, ChatRequest, GatewayError
from turnwise.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One API's way of writing requests, answers, streams and errors."""

    read: Callable[[bytes], ChatRequest]
    write: Callable[[Answer], dict[str, Json]]
    stream: Callable[[Answer], Iterable[bytes]]
    write_error: Callable[[GatewayError], dict[str, Json]]


OPENAI: Final = Wire(
    read=openai.read_request, write=openai.write_answer, stream=openai.write_stream, write_error=openai.write_error
)
ANTHROPIC: Final = Wire(
    read=anthropic.read_request,
    write=anthropic.write_answer,
    stream=anthropic.write_stream,
    write_error=anthropic.write_error,
)
RESPONSES: Final = Wire(
    read=responses.read_request,
    write=responses.write_answer,
    stream=responses.write_stream,
    write_error=openai.write_error,
)
