"""The policy: an engine that samples tokens, and the renderer that turns messages into ids and back.

Invariant: ids go into a move as they were fed and sampled, never re-tokenised.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.agents.base import GiveBack, Move, TurnTokens
from turnwise.agents.decoding import Decoding
from turnwise.agents.reading import TickReader
from turnwise.engines.base import Completion, Engine
from turnwise.envs.base import Env
from turnwise.ledger import Ledger
from turnwise.render.base import Render
from turnwise.types import Finish, Message, Step, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAgent:
    """`PolicyAgent(engine=engine, render=render, decoding=Decoding(temperature=.7))`; one plays all episodes."""

    engine: Engine
    render: Render
    decoding: Decoding = field(default_factory=Decoding)
    ledger: Ledger = field(default_factory=Ledger)
    """Where the time spent rendering is charged."""
    reader: TickReader = field(default_factory=TickReader)
    concurrency = None  # the engine's slots bound the episodes that sample at once

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "PolicySession":
        limit = self.engine.context_limit
        return PolicySession(self, env, session, limit if context_tokens is None else min(context_tokens, limit))


class PolicySession:
    """One conversation in tokens."""

    has_tokens = True

    def __init__(self, agent: PolicyAgent, env: Env, name: str, context_limit: int) -> None:
        self._agent, self._env, self._name, self._context_limit = agent, env, name, context_limit
        self._taken: list[TurnTokens] = []
        self._context: tuple[int, ...] = ()
        """What was read since the last move."""
        self._opens_row = True
        self._conversation: list[int] = []

    @property
    def room(self) -> int:
        return self._context_limit - len(self._conversation)

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        with self._agent.ledger.spend("render"):
            self._context = self._agent.render.start(messages, tools)
        self._conversation = list(self._context)

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        agent, asked = self._agent, self._env.turn_request()
        most = max_tokens if asked.max_tokens is None else min(max_tokens, asked.max_tokens)
        sampling = agent.decoding.sampling(max_tokens=most, stop_ids=agent.render.stop_ids, seed=seed)
        completion = await agent.engine.generate(self._name, self._conversation, sampling)
        with agent.ledger.spend("render"):
            completion = cut_at(completion, asked.stop, agent.render.decode)
            message = agent.render.parse(completion.ids)
        tokens = TurnTokens(context_ids=self._context, opens_row=self._opens_row, completion=completion)
        self._taken.append(tokens)
        return Move(message=message, tokens=tokens)

    async def observe(self, step: Step) -> tuple[int, ...]:
        if step.done and not step.truncated:
            return ()
        if step.rewrites is None:
            await self._agent.reader.prepare(self._agent.render, step.messages, self._agent.ledger)
        with self._agent.ledger.spend("render"):
            return self._read(step)

    def _read(self, step: Step) -> tuple[int, ...]:
        render, self._opens_row = self._agent.render, step.rewrites is not None
        if step.rewrites is None:
            action = self._taken[-1].completion.ids
            self._context = render.extend(action, step.messages)
            self._conversation += action
            self._conversation += self._context
            return self._context if self.room >= 0 else ()
        if step.resumes is None:
            self._context = render.start(step.rewrites, self._env.tools)
        else:
            resumed = self._taken[step.resumes].completion.ids
            self._context = (*self._ids_after(step.resumes), *render.extend(resumed, step.messages))
        self._conversation = list(self._context)
        return ()

    def _ids_after(self, turn: int) -> list[int]:
        """The conversation as it stood after a turn, its reply included."""
        first = turn
        while not self._taken[first].opens_row:
            first -= 1
        row = self._taken[first : turn + 1]
        return [token for tokens in row for token in (*tokens.context_ids, *tokens.completion.ids)]

    async def end(self) -> None:
        await self._agent.engine.end(self._name)


def cut_at(completion: Completion, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Completion:
    """The completion up to the token that completes a stop string, as if sampling had ended there.

    What is left was sampled under the same probabilities: whether to go on depends on earlier tokens alone.
    """
    ids = completion.ids

    def stops(length: int) -> bool:
        text = decode(ids[:length])
        return any(string in text for string in stop)

    if not stop or not stops(len(ids)):
        return completion
    length = bisect_left(range(1, len(ids)), True, key=stops) + 1
    if length == len(ids):
        return completion
    return completion.cut(length, Finish.STOP_STRING)
