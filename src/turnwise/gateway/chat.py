"""A request to the model, its answer and its refusal, in no API's shape: what the wire formats are read into.

Invariant: a request holds all that the client sent which the answer depends on; what is not followed is named in it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from turnwise.types import Finish, Message, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a program asks of the model: `ChatRequest(messages=(Message(role="user", content="Hello"),))`."""

    messages: tuple[Message, ...]
    """As the client sent them, with the call ids that the gateway gave it."""
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    """Choices; each is a turn of its own."""
    stream: bool = False
    stream_usage: bool = False
    logprobs: bool = False
    model: str = "turnwise"
    overridden: tuple[str, ...] = ()
    """Parameters that the client gave and the rollout decides, or that are not enforced: `("temperature",)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One choice, as the client receives it."""

    message: Message
    """Call ids are unique in the session; a call that cannot be read is text, as the model wrote it."""
    finish: Finish
    stop_string: str | None = None
    """The stop string that cut it off."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer to a request: one reply for each choice."""

    id: str
    created: int
    request: ChatRequest
    replies: tuple[Reply, ...]
    prompt_tokens: int
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def completion_tokens(self) -> int:
        return sum(len(reply.token_ids) for reply in self.replies)


class ErrorKind(StrEnum):
    """Why a request is refused; each API has its own words for these."""

    INVALID = "invalid"
    CONTEXT_FULL = "context_full"
    NO_SESSION = "no_session"
    """Unknown, or over: retrying is of no use."""
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    """Weights change, or the session has too many requests in flight: retry later."""
    FAILED = "failed"
    """The episode failed here; the client may retry, in vain."""


STATUS = {
    ErrorKind.INVALID: 400,
    ErrorKind.CONTEXT_FULL: 400,
    ErrorKind.NO_SESSION: 401,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.BUSY: 429,
    ErrorKind.FAILED: 500,
}


class GatewayError(Exception):
    """A request without an answer: `GatewayError(ErrorKind.INVALID, "n: give 1 or more", param="n")`."""

    def __init__(
        self, kind: ErrorKind, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind, self.message, self.param, self.retry_after = kind, message, param, retry_after

    @property
    def status(self) -> int:
        return STATUS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": f"{max(1, round(self.retry_after))}"}
