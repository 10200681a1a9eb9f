"""What a program's function is given to reach its model: addresses for any SDK, and calls without HTTP.

Invariant: a call made here takes the way of an HTTP request: the same reader, the same session, the same refusals.
"""

import asyncio
import json
import ssl
from functools import cache
from typing import TYPE_CHECKING

from turnwise.errors import RunError
from turnwise.gateway.session import Ended, Identity, Session
from turnwise.gateway.wire import OPENAI
from turnwise.types import Json

if TYPE_CHECKING:
    import anthropic
    import openai


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: an SDK that makes its own for each reads the certificates anew, some 20 ms an episode."""
    return ssl.create_default_context()


class AgentClient:
    """The model of one episode: `await client.chat(messages=[...], tools=[...])`, or `client.openai()`."""

    def __init__(self, session: Session, url: str) -> None:
        self._session = session
        self.api_key = session.name
        self.openai_base_url = f"{url}/v1"
        self.anthropic_base_url = url
        self._sdks: list[openai.AsyncOpenAI | anthropic.AsyncAnthropic] = []

    def openai(self, **options: object) -> "openai.AsyncOpenAI":
        """An `openai.AsyncOpenAI` whose model is the one in training."""
        try:
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        except ImportError:
            raise RunError("client.openai() needs the package openai: pip install openai") from None
        if "http_client" not in options:
            options["http_client"] = DefaultAsyncHttpxClient(verify=_tls(), trust_env=False)
        made = AsyncOpenAI(base_url=self.openai_base_url, api_key=self.api_key, **options)
        self._sdks.append(made)
        return made

    def anthropic(self, **options: object) -> "anthropic.AsyncAnthropic":
        """An `anthropic.AsyncAnthropic` whose model is the one in training."""
        try:
            from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
        except ImportError:
            raise RunError("client.anthropic() needs the package anthropic: pip install anthropic") from None
        if "http_client" not in options:
            options["http_client"] = DefaultAsyncHttpxClient(verify=_tls(), trust_env=False)
        made = AsyncAnthropic(base_url=self.anthropic_base_url, api_key=self.api_key, **options)
        self._sdks.append(made)
        return made

    async def close(self) -> None:
        """Closes the SDK clients made here, in the event loop that they were used in; twice does no harm.

        One that is left open is closed by the garbage collector, in a loop that is not its own, with a stack trace.
        """
        while self._sdks:
            await self._sdks.pop().close()

    async def chat(self, **body: Json) -> dict[str, Json]:
        """A chat completion by OpenAI's parameters, as JSON; needs no SDK and no HTTP."""
        request = OPENAI.read(json.dumps(body).encode())
        exchange = self._session.ask(request, Identity(body=b"", attempt=0))
        try:
            return OPENAI.write(await asyncio.wrap_future(exchange.answer))
        except asyncio.CancelledError:
            self._session.leave(exchange)
            raise

    def reward(self, value: float, name: str = "reward") -> None:
        """Pays the turn that was answered last."""
        self._session.pay(name, value)

    def fail(self, reason: str) -> None:
        """Reports that infrastructure broke: the episode is counted as failed and not scored."""
        self._session.end(Ended(failure=reason))
