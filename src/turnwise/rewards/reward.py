"""Rewards: named functions of a finished episode, each with a weight.

Invariant: a reward is a finite number or an error that names it; the raw score and the weight stay apart
until an environment pays, so that a curve shows the score whatever it was worth.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import overload

from turnwise.errors import RewardError
from turnwise.rewards.answers import exact_match, f1, final_answer
from turnwise.types import Message, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a reward function sees of an episode that has ended."""

    task: Task
    messages: tuple[Message, ...]
    """The whole conversation, the prompt and the last message included."""
    answer: str | None = None
    """The text of the message that ended the episode; None when its turns ran out first."""
    tool_calls: int = 0
    tool_errors: int = 0

    @property
    def gold_answers(self) -> tuple[str, ...]:
        """The task's `answers`, or its one `answer`, as text."""
        gold = self.task.data.get("answers", self.task.data.get("answer"))
        listed = gold if isinstance(gold, list | tuple) else (gold,)
        if not listed or not all(isinstance(answer, str | int | float) for answer in listed):
            raise RewardError(f"task '{self.task.id}' has no gold answer; put data={{'answers': ['...']}} in it")
        return tuple(map(str, listed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """`Reward(name="brevity", function=lambda episode: 1 / len(episode.messages), weight=0.1)`."""

    name: str
    """The channel under which it is paid and plotted."""
    function: Callable[[Episode], float]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise RewardError("a reward needs a name; write Reward(name=..., function=...)")
        if not math.isfinite(self.weight):
            raise RewardError(f"reward '{self.name}' has weight {self.weight}; give a finite number")

    def weighted(self, weight: float) -> "Reward":
        """The same reward, worth this much: `f1_reward.weighted(0.5)`."""
        return replace_fields(self, weight=weight)

    def score(self, episode: Episode) -> float:
        """The raw score, before its weight; a RewardError unless it is a finite number."""
        try:
            value = self.function(episode)
        except RewardError:
            raise
        except Exception as error:
            raise RewardError(f"reward '{self.name}' raised {type(error).__name__}: {error}") from error
        return finite(self.name, value)


def finite(name: str, value: object) -> float:
    """The value as a float; a RewardError that names the reward when it is not a finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever a user's function returned
    except (TypeError, ValueError):
        raise RewardError(f"reward '{name}' is {value!r}; return a finite number from it") from None
    if not math.isfinite(number):
        raise RewardError(f"reward '{name}' is {number}; return a finite number from it")
    return number


@overload
def reward(function: Callable[[Episode], float], /) -> Reward: ...
@overload
def reward(*, name: str | None = None, weight: float = 1.0) -> Callable[[Callable[[Episode], float]], Reward]: ...
def reward(
    function: Callable[[Episode], float] | None = None, /, *, name: str | None = None, weight: float = 1.0
) -> Reward | Callable[[Callable[[Episode], float]], Reward]:
    """Turns a function of an episode into a `Reward` under the function's own name, or the one given.

    @reward(weight=0.1)
    def brevity(episode: Episode) -> float:
        return 1.0 if episode.tool_calls <= 2 else 0.0
    """

    def decorate(function: Callable[[Episode], float]) -> Reward:
        return Reward(name=name or str(getattr(function, "__name__", "")), function=function, weight=weight)

    return decorate if function is None else decorate(function)


@reward(name="exact_match")
def exact_match_reward(episode: Episode) -> float:
    """1 when the text inside `<answer>` is a gold answer, else 0."""
    return float(exact_match(_predicted(episode), episode.gold_answers))


@reward(name="f1")
def f1_reward(episode: Episode) -> float:
    """The overlap of words between the text inside `<answer>` and the nearest gold answer."""
    return f1(_predicted(episode), episode.gold_answers)


@reward(name="format")
def format_reward(episode: Episode) -> float:
    """The mean of two indicators: the answer stands in its tags, and every tool call was well written."""
    calls = [call for message in episode.messages if message.role == "assistant" for call in message.tool_calls]
    return (bool(_predicted(episode)) + all(map(_well_written, calls))) / 2


@reward(name="format_gated_exact_match")
def format_gated_exact_match(episode: Episode) -> float:
    """Agent-R1's rule (arXiv 2511.14460): exact match when the format is right, else format score − 1."""
    return _gated(exact_match_reward, episode)


@reward(name="format_gated_f1")
def format_gated_f1(episode: Episode) -> float:
    """The same gate before the overlap of words: F1 when the format is right, else format score − 1."""
    return _gated(f1_reward, episode)


def _gated(outcome: Reward, episode: Episode) -> float:
    score = format_reward.score(episode)
    return outcome.score(episode) if score == 1.0 else score - 1.0


def _predicted(episode: Episode) -> str | None:
    return None if episode.answer is None else final_answer(episode.answer)


def _well_written(call: ToolCall) -> bool:
    if call.problem:
        return False
    try:
        return isinstance(json.loads(call.arguments), Mapping)
    except (ValueError, RecursionError):
        return False
