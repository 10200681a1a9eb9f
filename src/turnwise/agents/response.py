"""How an episode went, whoever played it: a model of ours, token by token, or one behind an API, by messages.

Invariant: what counts is what the environment said; an episode that infrastructure ended is failed, which is neither a
success nor a wrong answer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from turnwise.render.base import Render
from turnwise.rewards import final_answer
from turnwise.types import Group, Message, StopReason, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One episode without its tokens: `Response(stop=StopReason.DONE, turns=3, answer="Oslo", metrics={...})`."""

    stop: StopReason
    turns: int
    answer: str | None
    """What was said last, without its tags; None where nothing was, or where it was a tool call."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What was paid, by channel."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""
    messages: tuple[Message, ...] = ()
    """The conversation, where it is not kept as tokens elsewhere."""

    @property
    def failed(self) -> bool:
        """Ended by infrastructure: never scored."""
        return self.stop is StopReason.ENV_FAILED

    @property
    def success(self) -> bool:
        return not self.failed and self.metrics.get("success", 0.0) > 0.0

    @property
    def reward(self) -> float:
        return math.fsum(self.rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task and every response to it."""

    task: Task
    responses: tuple[Response, ...]

    @property
    def scored(self) -> tuple[Response, ...]:
        return tuple(response for response in self.responses if not response.failed)


def read_group(group: Group, render: Render) -> TaskResult:
    """What the trajectories of a task came to; `render` reads their last words."""
    return TaskResult(task=group.task, responses=tuple(_read_trajectory(t, render) for t in group.trajectories))


def read_answer(message: Message) -> str | None:
    """The answer in a last message: what its tags hold, else all it says; None where it calls a tool instead."""
    if message.tool_calls:
        return None
    tagged = final_answer(message.content)
    return message.content if tagged is None else tagged


def _read_trajectory(trajectory: Trajectory, render: Render) -> Response:
    last = render.parse(trajectory.turns[-1].action_ids) if trajectory.turns else None
    return Response(
        stop=trajectory.stop,
        turns=len(trajectory.turns),
        answer=None if last is None else read_answer(last),
        rewards=trajectory.rewards,
        metrics=trajectory.metrics,
        seconds=trajectory.seconds,
        failure=trajectory.failure,
    )
