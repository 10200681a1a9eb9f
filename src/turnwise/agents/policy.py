"""The policy: an engine that samples tokens, and the renderer that turns messages into ids and back.

Invariant: ids go into a move as they were fed and sampled, never re-tokenised.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnwise.agents.base import GiveBack, Move, TurnTokens
from turnwise.agents.decoding import Decoding
from turnwise.engines.base import Engine
from turnwise.envs.base import Env
from turnwise.ledger import Ledger
from turnwise.render.base import Render
from turnwise.types import Message, Step, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAgent:
    """`PolicyAgent(engine=engine, render=render, decoding=Decoding(temperature=.7))`; one plays all episodes."""

    engine: Engine
    render: Render
    decoding: Decoding = field(default_factory=Decoding)
    ledger: Ledger = field(default_factory=Ledger)
    """Where the time spent rendering is charged."""
    concurrency = None  # the engine's slots bound the episodes that sample at once

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "PolicySession":
        limit = self.engine.context_limit
        return PolicySession(self, session, limit if context_tokens is None else min(context_tokens, limit))


class PolicySession:
    """One conversation in tokens."""

    has_tokens = True

    def __init__(self, agent: PolicyAgent, name: str, context_limit: int) -> None:
        self._agent, self._name, self._context_limit = agent, name, context_limit
        self._tools: Sequence[ToolSpec] = ()
        self._context: tuple[int, ...] = ()
        """What was read since the last move."""
        self._opens_row = True
        self._action: tuple[int, ...] = ()
        self._conversation: list[int] = []

    @property
    def room(self) -> int:
        return self._context_limit - len(self._conversation)

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        self._tools = tools
        with self._agent.ledger.spend("render"):
            self._context = self._agent.render.start(messages, tools)
        self._conversation = list(self._context)

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        agent = self._agent
        sampling = agent.decoding.sampling(max_tokens=max_tokens, stop_ids=agent.render.stop_ids, seed=seed)
        completion = await agent.engine.generate(self._name, self._conversation, sampling)
        self._action = completion.ids
        with agent.ledger.spend("render"):
            message = agent.render.parse(completion.ids)
        tokens = TurnTokens(context_ids=self._context, opens_row=self._opens_row, completion=completion)
        return Move(message=message, tokens=tokens)

    def observe(self, step: Step) -> tuple[int, ...]:
        if step.done and not step.truncated:
            return ()
        render, self._opens_row = self._agent.render, step.rewrites is not None
        with self._agent.ledger.spend("render"):
            if step.rewrites is not None:
                self._context = render.start(step.rewrites, self._tools)
            else:
                self._context = render.extend(self._action, step.messages)
        if self._opens_row:
            self._conversation = list(self._context)
            return ()
        self._conversation += self._action
        self._conversation += self._context
        return self._context if self.room >= 0 else ()

    async def end(self) -> None:
        await self._agent.engine.end(self._name)
