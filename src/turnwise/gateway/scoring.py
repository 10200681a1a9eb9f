"""What an episode of a program earned: named rewards, a scoring function, or both.

Invariant: a scoring function that raises costs its episode, which is counted as failed; a reward that is not a finite
number is an error that names it.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.errors import TurnwiseError
from turnwise.gateway.env import ProgramFailed, Score
from turnwise.rewards import Episode, Reward
from turnwise.rewards.reward import finite
from turnwise.types import Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a scoring function sees of an episode that the program has ended."""

    task: Task
    messages: tuple[Message, ...]
    """The last conversation with the model, its last reply included."""
    result: object = None
    """What the program's function returned."""
    output: str = ""
    """The end of what the program wrote to standard output."""
    last_line: str = ""
    """Its last line that is not blank."""
    exit_code: int | None = None

    @property
    def answer(self) -> str:
        """What the program gave: its function's text, or its last line of output, or else the model's last reply."""
        if isinstance(self.result, str):
            return self.result
        return self.last_line or (self.messages[-1].content if self.messages else "")


Scorer: TypeAlias = Callable[[Outcome], float | Mapping[str, float] | Awaitable[float | Mapping[str, float]]]
"""The reward of an episode, or rewards by name."""


async def score_outcome(outcome: Outcome, rewards: Sequence[Reward], scorer: Scorer | None) -> Score:
    """The named rewards, the first of which defines success, and what the scoring function returns."""
    paid: dict[str, float] = {}
    metrics: dict[str, float] = {}
    if rewards:
        episode = Episode(task=outcome.task, messages=outcome.messages, answer=outcome.answer)
        metrics = {one.name: one.score(episode) for one in rewards}
        paid = {one.name: one.weight * metrics[one.name] for one in rewards}
        metrics["success"] = float(metrics[rewards[0].name] >= 1.0)
    if scorer is not None:
        paid |= await _run(scorer, outcome)
    return Score(rewards=paid, metrics=metrics)


async def _run(scorer: Scorer, outcome: Outcome) -> dict[str, float]:
    try:
        # In a thread: it may ask a judge, and must not hold up other episodes.
        scored = await asyncio.to_thread(scorer, outcome)
        if inspect.isawaitable(scored):
            scored = await scored
    except TurnwiseError:
        raise
    except Exception as error:
        raise ProgramFailed(f"score raised {type(error).__name__}: {error}") from error
    named = scored if isinstance(scored, Mapping) else {"score": scored}
    return {str(name): finite(str(name), value) for name, value in named.items()}
