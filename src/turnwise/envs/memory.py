"""Memory of a conversation that outgrows its context: old turns are dropped, or the agent replaces them by a summary.

Invariant: it acts between turns, by rewriting the conversation (`Step.rewrites`), so what was sampled stays in the rows
it was sampled in and trains there. A summary is a turn like any other: its tokens are the agent's own actions, they
train, and the next row starts from its text. The environment itself never notices.

    kind: oldest    row 1   S U A1 O1 A2 O2 A3          row 2   S U' A3 O3 A4 ...       U' notes what is left out
    kind: summary   row 1   S U A1 O1 A2 O2? Z          row 2   S U" A3 ...             U" ends with the text of Z
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from pydantic import Field

from turnwise.envs.base import Env
from turnwise.envs.contract import check_opening, check_step
from turnwise.envs.wrapper import WrappedEnv
from turnwise.settings import Settings
from turnwise.types import Message, Step, Task, Turn, TurnRequest

T = TypeVar("T")

_LEFT_OUT = "\n\n["
"""Opens the note that says how many turns are left out."""


class CompactionSettings(Settings):
    """What happens to a conversation that fills its context."""

    kind: Literal["oldest", "summary"] = "oldest"
    """`oldest`: the oldest turns are dropped; `summary`: the agent is asked to sum the conversation up, in a turn that
    trains like any other, and goes on from its summary."""
    at: float = Field(default=0.75, gt=0, lt=1)
    """The share of the context, filled, at which the conversation is compacted after a turn."""
    to: float = Field(default=0.5, gt=0, lt=1)
    """The share of the context down to which the oldest turns are dropped; read by `oldest`."""
    keep_turns: int = Field(default=0, ge=0)
    """Latest turns that stay as they are after a summary; read by `summary`."""
    summary_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens per summary; null: `rollout.turn_tokens`, the most it can be. Read by `summary`."""
    prompt: str = "Sum up what matters of this conversation so far. Only your summary will be left of it."
    """What the agent is asked; read by `summary`."""

    def unread(self) -> Mapping[str, str]:
        mine, others = ("to",), ("keep_turns", "summary_tokens", "prompt")
        return dict.fromkeys(others if self.kind == "oldest" else mine, "kind")


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One move of the agent and what the environment answered."""

    message: Message
    observed: tuple[Message, ...] = ()
    tokens: int = 0
    """Of both, as far as they were read."""


class Compacting(WrappedEnv):
    """An episode of another environment, with a memory: `Compacting(env.spawn(), settings)`.

    `context_tokens` is set once the agent's session is open; while it is None, as for an agent without tokens, nothing
    is ever compacted.
    """

    def __init__(self, env: Env, settings: CompactionSettings) -> None:
        super().__init__(env)
        self._settings = settings
        self.context_tokens: int | None = None
        self._opening: tuple[Message, ...] = ()
        self._opening_tokens = 0
        self._exchanges: list[_Exchange] = []
        self._row_tokens = 0
        self._note = ""
        """What the opening ends with in place of what was dropped."""
        self._asked = False
        """Whether the agent's next turn is a summary."""
        self._dropped = self._compactions = 0

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._opening = check_opening(await self._env.reset(task, episode_seed))
        return self._opening

    async def receive(self, turn: Turn) -> Step:
        self._count(turn)
        assert turn.message is not None, "a turn that was just taken has its message"
        if self._asked:
            return self._go_on_from(turn.message.content)
        step = check_step(await self._env.receive(turn))
        if step.done:
            return self._with_metrics(step)
        if step.rewrites is not None:  # the environment's own: what it tells is all there is now
            self._opening, self._exchanges, self._note = step.rewrites, [], ""
            return self._with_metrics(step)
        tokens = len(turn.action_ids)
        self._exchanges.append(_Exchange(message=turn.message, observed=step.messages, tokens=tokens))
        if self.context_tokens is None or self._row_tokens < self._settings.at * self.context_tokens:
            return self._with_metrics(step)
        return self._compact(step)

    async def overflow(self) -> Step | None:
        """The last observation left no room: the oldest turns are dropped, whatever the kind."""
        self._asked = False
        full = self.context_tokens
        if full is None or not self._drop_oldest(self._settings.to * full, held=full):
            return await self._env.overflow()
        return self._with_metrics(Step(rewrites=self._conversation()))

    def turn_request(self) -> TurnRequest:
        if not self._asked:
            return self._env.turn_request()
        return TurnRequest(max_tokens=self._settings.summary_tokens)

    def state_key(self) -> str | None:
        """A summary is another decision than the move that the same state asks for."""
        key = self._env.state_key()
        return f"{key} (summary)" if self._asked and key is not None else key

    def expert(self) -> Message:
        return self._env.expert_summary() if self._asked else self._env.expert()

    async def run_sync(self, method: Callable[[], T]) -> T:
        """An expert that is asked for a summary may be in another process, which knows nothing of this memory."""
        if self._asked and method == self.expert:
            return cast(T, await self._env.run_sync(self._env.expert_summary))
        return await super().run_sync(method)

    def _count(self, turn: Turn) -> None:
        """Measures the row, and the observation that this turn has read."""
        read = len(turn.context_ids)
        if turn.opens_row:
            self._row_tokens = 0
            if not self._exchanges:
                self._opening_tokens = read
        if self._exchanges:
            known = self._opening_tokens + sum(one.tokens for one in self._exchanges) if turn.opens_row else 0
            self._exchanges[-1].tokens += max(read - known, 0)
        self._row_tokens += read + len(turn.action_ids)

    def _compact(self, step: Step) -> Step:
        """The step after which the conversation is shorter, or after which the agent is asked to sum it up."""
        assert self.context_tokens is not None, "it is full, so its size is known"
        if self._settings.kind == "summary":
            self._asked = True
            return self._with_metrics(dataclasses.replace(step, messages=_ask(step.messages, self._settings.prompt)))
        held = self._opening_tokens + sum(one.tokens for one in self._exchanges)
        if not self._drop_oldest(self._settings.to * self.context_tokens, held=held):
            return self._with_metrics(step)
        return self._with_metrics(dataclasses.replace(step, rewrites=self._conversation()))

    def _drop_oldest(self, most: float, *, held: int) -> bool:
        """Drops the oldest turns, all but the latest at most, until `most` of the tokens held are left; False if none
        could go."""
        dropped = 0
        while held > most and len(self._exchanges) > 1:
            held -= self._exchanges.pop(0).tokens
            dropped += 1
        if not dropped:
            return False
        self._dropped += dropped
        self._compactions += 1
        # A summary that was made of still earlier turns stays.
        turns = "1 earlier turn" if self._dropped == 1 else f"{self._dropped} earlier turns"
        self._note = f"{self._note.partition(_LEFT_OUT)[0]}{_LEFT_OUT}{turns} left out]"
        return True

    def _go_on_from(self, summary: str) -> Step:
        """The step after a summary: the opening, the summary, and the latest turns if some are kept."""
        self._asked = False
        first_kept = max(0, len(self._exchanges) - self._settings.keep_turns)
        self._dropped += first_kept
        self._compactions += 1
        self._exchanges = self._exchanges[first_kept:]
        self._note = f"\n\nSummary so far: {summary.strip()}"
        return self._with_metrics(Step(rewrites=self._conversation()))

    def _conversation(self) -> tuple[Message, ...]:
        last = self._opening[-1]
        opening = (*self._opening[:-1], dataclasses.replace(last, content=last.content + self._note))
        return (*opening, *(message for one in self._exchanges for message in (one.message, *one.observed)))

    def _with_metrics(self, step: Step) -> Step:
        """Adds `compactions` and `compacted_turns` of this episode, beside what the environment measures."""
        own = {"compactions": float(self._compactions), "compacted_turns": float(self._dropped)}
        return dataclasses.replace(step, metrics={**step.metrics, **own})


def _ask(observed: Sequence[Message], prompt: str) -> tuple[Message, ...]:
    """What was observed, and then the prompt: in one message where both are the user's, as templates want it."""
    if not observed or observed[-1].role != "user":
        return (*observed, Message(role="user", content=prompt))
    last = observed[-1]
    return (*observed[:-1], dataclasses.replace(last, content=f"{last.content}\n\n{prompt}"))
