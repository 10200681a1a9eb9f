"""An agent that repeats the first turns of a stored trajectory, token by token, and then goes on as the policy.

Invariant: the environment is played anew with the stored moves, so it is in the state that the branch begins in; a turn
that reads other ids than the stored one did is noted in `diverged`, since then this is another episode.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from turnwise.agents.base import GiveBack, Move, TurnTokens
from turnwise.agents.policy import PolicyAgent, PolicySession
from turnwise.engines.base import Completion
from turnwise.envs.base import Env
from turnwise.seeds import derive_seed
from turnwise.types import Finish, Message, Step, ToolSpec, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What differs from the turn on at which a branch leaves; nothing does by default."""

    seed: int | None = None
    """Of the turns that are sampled; None: the episode's own, which repeats it."""
    edit_result: str | None = None
    """What the agent reads in place of the last message before that turn: a tool's result, as a rule."""
    action: str | None = None
    """A person's own move in that turn, as raw text of the assistant; the policy goes on after it."""


@dataclass(slots=True, kw_only=True)
class ReplayAgent:
    """`ReplayAgent(policy=policy, turns=trajectory.turns, keep=2)`: two turns as stored, then the policy's own."""

    policy: PolicyAgent
    turns: Sequence[Turn]
    keep: int
    """Turns that are repeated."""
    changes: Changes = field(default_factory=Changes)
    version: int = 0
    """Of the policy's weights, which an engine that loaded nothing since cannot tell."""
    concurrency = 1
    diverged: int | None = None
    """The first repeated turn, counted from 0, that read other ids than the stored one."""

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> "ReplaySession":
        limit = self.policy.engine.context_limit
        limit = limit if context_tokens is None else min(context_tokens, limit)
        return ReplaySession(self, env, session, limit)


class ReplaySession(PolicySession):
    """One replay."""

    def __init__(self, replay: ReplayAgent, env: Env, name: str, context_limit: int) -> None:
        super().__init__(replay.policy, env, name, context_limit)
        self._replay = replay

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        edited = self._replay.changes.edit_result if not self._replay.keep else None
        super().begin(messages if edited is None else _edit(messages, edited), tools, give_back)

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        replay, number = self._replay, len(self._taken)
        if number < replay.keep:
            return self._repeat(number)
        if number == replay.keep and replay.changes.action is not None:
            return self._move(replay.changes.action)
        if replay.changes.seed is not None:
            seed = derive_seed(replay.changes.seed, "branch", number)
        move = await super().act(max_tokens=max_tokens, seed=seed)
        assert move.tokens is not None, "a policy's move has tokens"
        completion = replace(move.tokens.completion, version=replay.version, versions=())
        self._taken[-1] = replace(move.tokens, completion=completion)
        return replace(move, tokens=self._taken[-1])

    async def observe(self, step: Step) -> tuple[int, ...]:
        edited = self._replay.changes.edit_result
        if edited is not None and len(self._taken) == self._replay.keep:
            if step.rewrites is None or step.resumes is not None:
                step = replace(step, messages=_edit(step.messages, edited))
            else:
                step = replace(step, rewrites=_edit(step.rewrites, edited))
        return await super().observe(step)

    def _repeat(self, number: int) -> Move:
        turn = self._replay.turns[number]
        if self._replay.diverged is None and turn.context_ids != self._context:
            self._replay.diverged = number
        return self._take(
            Completion(
                ids=turn.action_ids,
                logprobs=turn.logprobs,
                finish=turn.finish,
                version=turn.version,
                versions=turn.versions,
            )
        )

    def _move(self, text: str) -> Move:
        """A person's words have no logprob."""
        ids = self._agent.render.encode_action(text)
        return self._take(Completion(ids=ids, logprobs=(math.nan,) * len(ids), finish=Finish.STOP, version=0))

    def _take(self, completion: Completion) -> Move:
        tokens = TurnTokens(context_ids=self._context, opens_row=self._opens_row, completion=completion)
        self._taken.append(tokens)
        return Move(message=self._agent.render.parse(completion.ids), tokens=tokens)


def _edit(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The last tool's message with another content; the last message of any kind where no tool answered."""
    roles = [message.role for message in messages]
    if not roles:
        return (Message(role="user", content=text),)
    place = len(roles) - 1 - roles[::-1].index("tool") if "tool" in roles else len(roles) - 1
    return (*messages[:place], replace(messages[place], content=text), *messages[place + 1 :])
