"""The environment's own expert as an agent: by messages, or token by token as the policy would have sampled them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.agents.base import MessageSession, Move
from turnwise.agents.policy import PolicyAgent, PolicySession
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.base import Env
from turnwise.envs.boundary import Boundary
from turnwise.envs.contract import check_expert
from turnwise.render.base import Render
from turnwise.types import Message

_SECONDS = 300.0
"""Until an expert that gives no answer has failed."""


async def ask_expert(env: Env) -> Message:
    """The expert's message in the present state; what it raises is a failure of the episode."""
    if not env.has_expert:
        return env.expert()  # its error says what to do
    with Boundary()("expert"):
        async with asyncio.timeout(_SECONDS):
            return check_expert(await env.run_sync(env.expert))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertAgent:
    """Says what `env.expert()` returns; an environment without one raises its own error."""

    concurrency = None

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "ExpertSession":
        return ExpertSession(env)


class ExpertSession(MessageSession):
    """An episode of the expert, who looks into its environment."""

    def __init__(self, env: Env) -> None:
        self._env = env

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        return Move(message=await ask_expert(self._env))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstratingExpert:
    """The expert with tokens: its messages are written and cut off as a model's are, each id with a logprob of 0."""

    render: Render
    context_limit: int
    concurrency = None

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> PolicySession:
        render = self.render

        async def reply(session: str, prompt_ids: Sequence[int]) -> str:
            return render.write(await ask_expert(env))

        engine = ScriptedEngine(reply, render.encode_action, context_limit=self.context_limit)
        return PolicyAgent(engine=engine, render=render).open(env, session=session, context_tokens=context_tokens)
