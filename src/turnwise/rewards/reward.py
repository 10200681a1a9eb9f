"""Rewards: named functions of a finished episode, each with a weight.

Invariant: a reward is a finite number or an error that names it; the raw score and the weight stay apart
until an environment pays, so that a curve shows the score whatever it was worth.
"""

import contextlib
import functools
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import TypeAlias, cast, overload

from turnwise.errors import RewardError
from turnwise.rewards.answers import exact_match, f1, final_answer, is_answer, write_answer
from turnwise.tools.episode_thread import EpisodeThread
from turnwise.tools.infrastructure import InfrastructureError
from turnwise.tools.running import TimedOutError, run_in_loop, run_in_thread
from turnwise.tools.tool import is_method
from turnwise.tools.watchdog import calls_foreign_code
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
    env: object = field(default=None, repr=False, compare=False)
    """The environment it was played in, an instance of its own: `episode.env.db`, or whatever state it has."""

    @property
    def gold_answers(self) -> tuple[str, ...]:
        """The task's `answers`, or its one `answer`, as text; a whole number is written without its point: `"42"`."""
        gold = self.task.data.get("answers", self.task.data.get("answer"))
        listed = gold if isinstance(gold, list | tuple) else (gold,)
        if not listed or not all(map(is_answer, listed)):
            raise RewardError(f"task '{self.task.id}' has no gold answer; put data={{'answers': ['...']}} in it")
        return tuple(map(write_answer, listed))


class ScoringDownError(Exception):
    """What scores is down, such as a judge's endpoint: the episode fails and is counted, and is never scored."""


RewardFunction: TypeAlias = Callable[..., float | Awaitable[float]]
"""`(episode) -> float`, or `(self, episode) -> float` for a method; sync or async."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """`Reward(name="brevity", function=lambda episode: 1 / len(episode.messages), weight=0.1)`.

    On a method of a `ToolEnv`, the environment of each episode has a reward of its own.
    """

    name: str
    """The channel under which it is paid and plotted."""
    function: RewardFunction
    weight: float = 1.0
    timeout: float = 120.0
    """Seconds until it counts as failed, and its episode with it; one that runs inline has no timeout."""
    quick: bool = False
    """Pure and fast: runs inline on the event loop, without a thread."""
    unbound: bool = False
    """True for a method looked up on its class, which has no `self` to run with."""

    def __post_init__(self) -> None:
        if not self.name:
            raise RewardError("a reward needs a name; write Reward(name=..., function=...)")
        if not math.isfinite(self.weight):
            raise RewardError(f"reward '{self.name}' has weight {self.weight}; give a finite number")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise RewardError(f"reward '{self.name}': timeout is {self.timeout}; give a positive number of seconds")
        if self.quick and self.is_async:
            raise RewardError(f"reward '{self.name}' is async; quick=True is for plain functions: leave it out")

    def __get__(self, instance: object | None, owner: type | None = None) -> "Reward":
        if instance is None or not self.unbound:
            return self
        return replace_fields(self, function=functools.partial(self.function, instance), unbound=False)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def weighted(self, weight: float) -> "Reward":
        """The same reward, worth this much: `f1_reward.weighted(0.5)`."""
        return replace_fields(self, weight=weight)

    def score(self, episode: Episode) -> float:
        """The raw score of a sync function, before its weight; a RewardError unless it is a finite number."""
        if self.is_async:
            raise RewardError(f"reward '{self.name}' is async; await its score_episode(episode)")
        with self._named():
            value = self.function(episode)
        return finite(self.name, value)

    async def score_episode(self, episode: Episode, thread: EpisodeThread | None = None) -> float:
        """The raw score of a function of either kind; a sync one that is not quick runs in a thread."""
        if self.quick and thread is None:
            return self.score(episode)
        work = functools.partial(self.function, episode)
        with self._named():
            if self.is_async:
                value = work()
            elif thread is not None:
                value = await thread.run(work, what=f"reward '{self.name}'", seconds=self.timeout)
            else:
                value = await run_in_thread(work, self.timeout, what=f"reward '{self.name}'")
            if inspect.iscoroutine(value):
                value = await run_in_loop(value, self.timeout)
        return finite(self.name, value)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Within it, what the function raises becomes a RewardError that names the reward."""
        try:
            yield
        except (RewardError, ScoringDownError, InfrastructureError):
            raise
        except TimedOutError:
            raise RewardError(f"reward '{self.name}' gave no answer within {self.timeout:g} seconds") from None
        except Exception as error:
            raise RewardError(f"reward '{self.name}' raised {type(error).__name__}: {error}") from error


calls_foreign_code(Reward.score, lambda local: f"reward '{cast(Reward, local['self']).name}'")


def finite(name: str, value: object) -> float:
    """The value as a float; a RewardError that names the reward when it is not a finite number."""
    try:
        # Text is refused even where it reads as a number: a function that returns it forgot to parse it.
        number = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]  # anything at all
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"reward '{name}' is {value!r}; return a finite number from it")
    return number


@overload
def reward(function: RewardFunction, /) -> Reward: ...
@overload
def reward(
    *, name: str | None = None, weight: float = 1.0, timeout: float = 120.0, quick: bool = False
) -> Callable[[RewardFunction], Reward]: ...
def reward(
    function: RewardFunction | None = None,
    /,
    *,
    name: str | None = None,
    weight: float = 1.0,
    timeout: float = 120.0,
    quick: bool = False,
) -> Reward | Callable[[RewardFunction], Reward]:
    """Turns a function of an episode, or a method of a `ToolEnv`, into a `Reward` under its own name or the one given.

    @reward(weight=0.1)
    def brevity(episode: Episode) -> float:
        return 1.0 if episode.tool_calls <= 2 else 0.0

    Args:
        name: The channel under which it is paid; the function's own name by default.
        weight: What a score of 1 is worth.
        timeout: Seconds until it counts as failed, and its episode with it.
        quick: For a fast function that never waits: it runs inline, without a thread.
    """

    def decorate(function: RewardFunction) -> Reward:
        called = name or str(getattr(function, "__name__", ""))
        unbound = inspect.isfunction(function) and is_method(function)
        return Reward(name=called, function=function, weight=weight, timeout=timeout, quick=quick, unbound=unbound)

    return decorate if function is None else decorate(function)


@reward(name="exact_match", quick=True)
def exact_match_reward(episode: Episode) -> float:
    """1 when the text inside `<answer>` is a gold answer, else 0."""
    return float(exact_match(_predicted(episode), episode.gold_answers))


@reward(name="f1", quick=True)
def f1_reward(episode: Episode) -> float:
    """The overlap of words between the text inside `<answer>` and the nearest gold answer."""
    return f1(_predicted(episode), episode.gold_answers)


@reward(name="format", quick=True)
def format_reward(episode: Episode) -> float:
    """The mean of two indicators: the answer stands in its tags, and every tool call was well written."""
    calls = [call for message in episode.messages if message.role == "assistant" for call in message.tool_calls]
    return (bool(_predicted(episode)) + all(map(_well_written, calls))) / 2


@reward(name="format_gated_exact_match", quick=True)
def format_gated_exact_match(episode: Episode) -> float:
    """Agent-R1's rule (arXiv 2511.14460): exact match when the format is right, else format score − 1."""
    return _gated(exact_match_reward, episode)


@reward(name="format_gated_f1", quick=True)
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
