"""An agent that says what it was given: for smoke tests and tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.agents.base import AgentStopped, MessageSession, Move
from turnwise.envs.base import Env
from turnwise.render.formats import parse_text
from turnwise.types import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAgent:
    """`ScriptedAgent(replies=["<answer>Oslo</answer>"])`: the same replies in every episode, after which it quits."""

    replies: Sequence[str] = ()
    concurrency = None

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "ScriptedSession":
        return ScriptedSession(self.replies)


class ScriptedSession(MessageSession):
    """One reading of the script."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = iter(replies)

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        for reply in self._replies:
            return Move(message=parse_text(reply))
        raise AgentStopped(StopReason.AGENT_QUIT)
