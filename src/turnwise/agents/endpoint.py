"""`Endpoint`: a model behind an OpenAI-compatible API.

    POST {url}/chat/completions  {"model": "...", "messages": [...], "tools": [...], "temperature": 0, ...}
    {"choices": [{"message": {"role": "assistant", "content": "...", "tool_calls": [...]}}]}

Invariant: a request ends in a message, or after all attempts in EndpointDownError, whose text never holds the key. What
no retry can mend (no such model, a wrong key, no server) is a ModelError as long as nothing was ever answered.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import Field, JsonValue

from turnwise.agents.chat import NoCompletionError, read_completion
from turnwise.endpoints import CHAT_PATH, ChatEndpointSettings
from turnwise.engines.settings import OpenAIEngineSettings
from turnwise.errors import ConfigError, ModelError
from turnwise.http import HttpClient, HttpError, RetryPolicy, StatusError, UnreachableError
from turnwise.settings import parse_settings
from turnwise.types import Json, Message

_MAX_BYTES: Final = 16 * 2**20
_MAX_WAIT: Final = 60.0
_KEY: Final = "name the environment variable of its key by --key-env"
_REFUSED: Final = {401: _KEY, 403: _KEY, 404: "check its address and the name of the model"}
_CONTEXT_FULL: Final = ("context_length", "context length", "context window", "context size", "maximum model length")
"""How servers say, in a refusal, that the conversation is too long."""


class EndpointSettings(ChatEndpointSettings):
    """The endpoint, the model, and how often a request is tried."""

    timeout: float = Field(default=120.0, gt=0)
    """Seconds for one attempt."""
    attempts: int = Field(default=6, ge=1)
    """The most attempts for one request, while the endpoint is busy, fails or does not answer."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds before the second attempt; each further wait is twice as long, or what the server asks for, up to 60."""
    concurrency: int = Field(default=16, ge=1)
    """Episodes played at once."""
    options: dict[str, JsonValue] = Field(default={})
    """Further fields of each request; they replace ours, and null removes one."""


def read_endpoint(
    url: str | None, model: str | None, *, key_env: str | None = None, settings: Sequence[str] = ()
) -> EndpointSettings | None:
    """The endpoint that the command line names, or None; `settings` are such as `timeout=300`."""
    if url is None:
        if model or key_env or settings:
            raise ConfigError("--api-model, --key-env and --api are about an endpoint: name it by --endpoint URL")
        return None
    if model is None:
        raise ConfigError("--endpoint: say which of its models plays: --api-model NAME")
    data = {"url": url, "model": model} | ({"key_env": key_env} if key_env else {})
    return parse_settings(EndpointSettings, data, overrides=settings, source="--endpoint")


def endpoint_of(engine: OpenAIEngineSettings) -> EndpointSettings:
    """The server of an engine as an endpoint whose model plays with weights of its own."""
    return EndpointSettings(
        url=engine.url, model=engine.model, key_env=engine.key_env, timeout=engine.timeout, concurrency=engine.slots
    )


class EndpointDownError(Exception):
    """No completion after all attempts: a failure of the infrastructure, not of the agent."""


class ContextFullError(Exception):
    """The conversation is longer than the model can read."""


class Endpoint:
    """`Endpoint(EndpointSettings(url="http://127.0.0.1:8000/v1", model="qwen"))`; one serves all episodes."""

    def __init__(self, settings: EndpointSettings) -> None:
        if settings.key_env and not os.environ.get(settings.key_env, "").strip():
            raise ConfigError(f"key_env is {settings.key_env}, but no such environment variable is set")
        self.settings = settings
        policy = RetryPolicy(
            timeout=settings.timeout, attempts=settings.attempts, backoff=settings.backoff, max_wait=_MAX_WAIT
        )
        self._client = HttpClient(f"{settings.url}{CHAT_PATH}", policy, max_bytes=_MAX_BYTES, key_env=settings.key_env)
        self._answered = False
        """Whether the endpoint has ever sent a completion, so that its address, key and model are right."""

    async def complete(self, request: Mapping[str, Json], *, turn: int, lose: Callable[[float], None]) -> Message:
        """The model's next message; `lose` is called with the seconds that each failed attempt and its wait take."""
        fields = {"model": self.settings.model, **request, **self.settings.options}
        sent = {name: value for name, value in fields.items() if value is not None}
        try:
            message = await self._client.post(sent, lambda body: _read(body, turn), on_retry=lose)
        except HttpError as error:
            raise self._classify(error) from error
        self._answered = True
        return message

    def _classify(self, error: HttpError) -> Exception:
        """The conversation's fault, the user's, or the endpoint's."""
        if isinstance(error, UnreachableError) and not self._answered:
            return ModelError(f"{self.settings.url}: cannot be reached ({error}); check the address and the server")
        if error.temporary:
            return EndpointDownError(f"{error}, {self.settings.attempts} times")
        if isinstance(error, StatusError):
            body = error.body.decode("utf-8", "replace").lower()
            if error.status in (400, 413, 422) and any(mark in body for mark in _CONTEXT_FULL):
                return ContextFullError(str(error))
            if error.status in _REFUSED and not self._answered:
                return ModelError(f"{self.settings.url}: {error}; {_REFUSED[error.status]}")
        return EndpointDownError(str(error))


def _read(body: bytes, turn: int) -> Message:
    try:
        return read_completion(body, turn=turn)
    except NoCompletionError as error:
        raise HttpError(str(error), temporary=True) from error  # a server behind a gateway may do better next time
