"""The agent's contract: who acts in an episode is a value, and the rollout's one loop asks it for every move.

Invariant: a move is a message; from a policy it also carries the ids that were read and sampled, as they were. An agent
never judges: limits, rewards, stop reasons and failures are the loop's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from turnwise.engines.base import Completion
from turnwise.envs.base import Env
from turnwise.envs.boundary import EpisodeFailure as EpisodeFailure
from turnwise.types import Message, Step, StopReason, ToolSpec

GiveBack: TypeAlias = Callable[[float], None]
"""Takes seconds off the episode's clock that were lost through no fault of the agent."""


class AgentStopped(Exception):
    """The agent makes no further move; `stop` is why: CONTEXT_FULL or AGENT_QUIT."""

    def __init__(self, stop: StopReason) -> None:
        super().__init__(stop.value)
        self.stop = stop


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTokens:
    """The tokens of a policy's move."""

    context_ids: tuple[int, ...]
    """What it read since its last move."""
    opens_row: bool
    """True when `context_ids` is the whole conversation."""
    completion: Completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What an agent did in one turn: `Move(message=Message(role="assistant", content="Up"))`."""

    message: Message
    tokens: TurnTokens | None = None
    """Present where the agent is a policy that can be trained on it."""


class Session(Protocol):
    """One agent's side of one episode. The loop calls `begin` once, then `act` and `observe` in turn, then `end`."""

    @property
    def has_tokens(self) -> bool:
        """Whether moves carry tokens; where they do not, the loop keeps the messages."""
        ...

    @property
    def room(self) -> int | None:
        """Tokens that fit into the context before it is full; None where only the agent's server knows."""
        ...

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        """Takes what the environment's reset returned."""
        ...

    async def act(self, *, max_tokens: int, seed: int) -> Move:
        """The next move, of `max_tokens` at the most; raises `AgentStopped` or `EpisodeFailure` where there is none."""
        ...

    async def observe(self, step: Step) -> tuple[int, ...]:
        """Takes the environment's answer to the last move, and returns the ids it would read next in the same row.

        Empty where the agent has no tokens, the episode is over, a rewrite opens a new row or the ids do not fit.
        """
        ...

    async def end(self) -> None:
        """Frees what the session held; called once, whatever happened."""
        ...


class Agent(Protocol):
    """Anything that can act: the policy, a model behind an API, a person, an expert, a script."""

    @property
    def concurrency(self) -> int | None:
        """Episodes it can play at once; None: any number."""
        ...

    def open(self, env: Env, *, session: str, context_tokens: int | None) -> Session:
        """A session for one episode, played in `env`, which the environment's own expert looks into.

        `session` names it to an engine; `context_tokens` is the rollout's own limit on the conversation, if it has one.
        """
        ...


class MessageSession:
    """What sessions without tokens share: they have no room to run out of, and read nothing as ids."""

    has_tokens = False
    room = None

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec], give_back: GiveBack) -> None:
        """Nothing is kept of the opening."""

    async def observe(self, step: Step) -> tuple[int, ...]:
        """Nothing is kept of the environment's answer."""
        return ()

    async def end(self) -> None:
        """Nothing is held."""
