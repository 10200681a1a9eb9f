"""A model behind an API as an agent: messages to the endpoint, messages back, no tokens.

Invariant: time that the endpoint lost by being busy or broken is given back to the episode's clock, and an episode that
the endpoint ends is failed, never wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.agents.base import AgentStopped, EpisodeFailure, GiveBack, MessageSession, Move
from turnwise.agents.chat import write_message
from turnwise.agents.decoding import Decoding
from turnwise.agents.endpoint import ContextFullError, Endpoint, EndpointDownError
from turnwise.envs.base import Env
from turnwise.types import Json, Message, Step, StopReason, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAgent:
    """`ApiAgent(endpoint=Endpoint(EndpointSettings(url="http://127.0.0.1:8000/v1", model="qwen")))`."""

    endpoint: Endpoint
    decoding: Decoding = field(default_factory=Decoding)

    @property
    def concurrency(self) -> int:
        return self.endpoint.settings.concurrency

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "ApiSession":
        return ApiSession(self)


class ApiSession(MessageSession):
    """One conversation, sent whole with every request."""

    def __init__(self, agent: ApiAgent) -> None:
        self._agent = agent
        self._conversation: list[Message] = []
        self._turns = 0

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        self._conversation, self._tools, self._give_back = list(messages), tools, give_back

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        request = self._request(max_tokens, seed)
        try:
            message = await self._agent.endpoint.complete(request, turn=self._turns, lose=self._give_back)
        except ContextFullError as error:
            if self._turns == 0:  # not what the agent has read, but what it is asked to read and write
                raise EpisodeFailure(f"endpoint: {error}") from error
            raise AgentStopped(StopReason.CONTEXT_FULL) from error
        except EndpointDownError as error:
            raise EpisodeFailure(f"endpoint: {error}") from error
        self._turns += 1
        self._conversation.append(message)
        return Move(message=message)

    async def observe(self, step: Step) -> tuple[int, ...]:
        if step.rewrites is None:
            self._conversation += step.messages
        else:
            self._conversation = list(step.rewrites)
        return ()

    def _request(self, max_tokens: int, seed: int) -> dict[str, Json]:
        """One turn's request: only what the recipe asks for, since servers refuse what they do not know."""
        decoding = self._agent.decoding
        request: dict[str, Json] = {
            "messages": [write_message(message) for message in self._conversation],
            "temperature": decoding.temperature,
            "max_tokens": max_tokens,
            "seed": seed % 2**31,
        }
        if self._tools:
            request["tools"] = [spec.to_openai() for spec in self._tools]
        if decoding.top_p < 1:
            request["top_p"] = decoding.top_p
        if decoding.top_k > 0:
            request["top_k"] = decoding.top_k
        return request
