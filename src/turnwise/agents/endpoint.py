"""`Endpoint`: a model behind an OpenAI-compatible API.

    POST {url}/chat/completions  {"model": "...", "messages": [...], "tools": [...], "temperature": 0, ...}
    {"choices": [{"message": {"role": "assistant", "content": "...", "tool_calls": [...]}}]}

Invariant: a request ends in a message, or after all attempts in EndpointDownError, whose words hold no key. What no
attempt can mend (no such model, a wrong key, nobody there) is a ModelError as long as nothing was ever answered.
"""

import asyncio
import dataclasses
import functools
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import Field, JsonValue, field_validator

from turnwise.agents.chat import NoCompletionError, read_completion
from turnwise.errors import ConfigError, ModelError
from turnwise.settings import Settings
from turnwise.tools.http import Reply, TooLongError, post, read_address
from turnwise.tools.running import TimedOutError, run_in_thread
from turnwise.types import Json, Message

_MOST_BYTES: Final = 16 * 2**20
_LONGEST_WAIT: Final = 60.0
_PATH: Final = "/chat/completions"
_KEY: Final = "name the environment variable of its key by --key-env"
_REFUSED: Final = {401: _KEY, 403: _KEY, 404: "check its address and the name of the model"}
_FULL: Final = ("context_length", "context length", "context window", "context size", "maximum model length")
"""How servers say, in a refusal, that the conversation is too long."""


class EndpointSettings(Settings):
    """Whom to ask, and how patiently."""

    url: str
    """Of the endpoint, with its version: `http://127.0.0.1:8000/v1`. It is reached directly, past any proxy."""
    model: str
    """The name under which the endpoint knows the model."""
    key_env: str | None = None
    """The environment variable that holds the endpoint's key, sent as a bearer token; none is sent unless told."""
    timeout: float = Field(default=120.0, gt=0)
    """Seconds until an attempt is given up."""
    attempts: int = Field(default=6, ge=1)
    """How often a request is made, in all, while the endpoint is busy, broken or silent."""
    backoff: float = Field(default=1.0, ge=0)
    """Seconds before the second attempt; each further wait is twice as long, or what the server asks for, up to 60."""
    concurrency: int = Field(default=16, ge=1)
    """Episodes that are under way at once."""
    options: dict[str, JsonValue] = Field(default={})
    """Further fields of each request, over those we send; null leaves one of ours out."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if read_address(url) is None:
            raise ValueError(f"'{url}' is not the address of an endpoint; write e.g. http://127.0.0.1:8000/v1")
        return url.rstrip("/").removesuffix(_PATH)


class EndpointDownError(Exception):
    """No completion came, though all attempts were made: the infrastructure's failure, not the agent's."""


class ContextFullError(Exception):
    """The conversation is longer than the model can read."""


class _BusyError(Exception):
    """An answer that another attempt may better: the server is busy or broken."""

    def __init__(self, words: str, wait: float = 0.0) -> None:
        super().__init__(words)
        self.wait = wait


class Endpoint:
    """`Endpoint(EndpointSettings(url="http://127.0.0.1:8000/v1", model="qwen"))`; one serves all episodes."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self._address = read_address(settings.url + _PATH)
        self._proven = False
        if settings.key_env and not self._key:
            raise ConfigError(f"key_env is {settings.key_env}, but no such environment variable is set")

    async def complete(self, request: Mapping[str, Json], *, turn: int, lose: Callable[[float], None]) -> Message:
        """The model's next message; `lose` is told of the seconds that attempts in vain have cost."""
        settings = self.settings
        fields = {"model": settings.model, **request, **settings.options}
        body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
        for attempt in range(settings.attempts):
            began = time.monotonic()
            try:
                message = await self._ask(body, turn)
            except (OSError, http.client.HTTPException, TimedOutError, NoCompletionError, _BusyError) as error:
                if attempt + 1 == settings.attempts:
                    raise self._give_up(error) from error
                asked = error.wait if isinstance(error, _BusyError) else 0.0
                wait = min(max(settings.backoff * 2**attempt, asked), _LONGEST_WAIT)
            else:
                self._proven = True
                return message
            lose(time.monotonic() - began + wait)
            await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, body: bytes, turn: int) -> Message:
        """One attempt."""
        assert self._address is not None, "checked when the settings were made"
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = self.settings.timeout
        send = functools.partial(post, self._address, body, timeout=timeout, most_bytes=_MOST_BYTES, headers=headers)
        try:
            # The timeout of a connection counts from byte to byte; the thread's counts in all.
            reply = await run_in_thread(send, timeout + 0.5)
        except TooLongError as error:
            raise EndpointDownError(str(error)) from error
        assert isinstance(reply, Reply), "a post returns a reply"
        if reply.status == 200:
            return read_completion(reply.body, turn=turn)
        raise self._refusal(reply)

    def _refusal(self, reply: Reply) -> Exception:
        shown = dataclasses.replace(reply, body=self._without_key(reply.body))
        words = f"it answered with status {reply.status}{shown.quote()}"
        if reply.may_pass:
            return _BusyError(words, reply.retry_after or 0.0)
        said = reply.body.decode("utf-8", "replace").lower()
        if reply.status in (400, 413, 422) and any(mark in said for mark in _FULL):
            return ContextFullError(words)
        if reply.status in _REFUSED and not self._proven:
            return ModelError(f"{self.settings.url}: {words}; {_REFUSED[reply.status]}")
        return EndpointDownError(words)

    def _give_up(self, error: Exception) -> Exception:
        words = str(error) or type(error).__name__
        if isinstance(error, ConnectionRefusedError | socket.gaierror | ssl.SSLError) and not self._proven:
            return ModelError(f"{self.settings.url}: cannot be reached ({words}); check the address and the server")
        if isinstance(error, TimedOutError | TimeoutError):
            words = f"no answer in {self.settings.timeout:g} seconds"
        return EndpointDownError(f"{words}, {self.settings.attempts} times")

    @property
    def _key(self) -> str:
        """Read whenever it is needed, and kept nowhere."""
        return os.environ.get(self.settings.key_env, "").strip() if self.settings.key_env else ""

    def _without_key(self, body: bytes) -> bytes:
        """Servers quote what they were sent; nothing that is shown or stored may hold the key."""
        return body.replace(self._key.encode(), b"***") if self._key else body
