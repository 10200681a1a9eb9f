"""One episode, or many, played by a model behind an API: the rollout's conversation, without tokens.

Invariant: turns, seconds and scoring are as in a rollout; limits in tokens other than a turn's cannot be kept where
there are none. Time that the endpoint lost by being busy or broken is not the agent's, and an episode that the endpoint
ends is failed, never wrong.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.agents.chat import write_message
from turnwise.agents.endpoint import ContextFullError, Endpoint, EndpointDownError
from turnwise.agents.response import Response, TaskResult, read_answer
from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.rollout import Decoding, Limits
from turnwise.rollout.boundary import EpisodeFailure, boundary, conclude
from turnwise.seeds import derive_seed
from turnwise.types import Json, Message, StopReason, Task

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPlayer:
    """Who plays, and by which rules: an endpoint, decoding and limits."""

    endpoint: Endpoint
    limits: Limits = field(default_factory=Limits)
    decoding: Decoding = field(default_factory=Decoding)

    def request(self, messages: Sequence[Message], env: Env, seed: int) -> dict[str, Json]:
        """One turn's request: only what the recipe asks for, since servers refuse what they do not know."""
        asked: dict[str, Json] = {
            "messages": [write_message(message) for message in messages],
            "temperature": self.decoding.temperature,
            "max_tokens": self.limits.turn_tokens,
            "seed": seed % 2**31,
        }
        if env.tools:
            asked["tools"] = [spec.to_openai() for spec in env.tools]
        if self.decoding.top_p < 1:
            asked["top_p"] = self.decoding.top_p
        if self.decoding.top_k > 0:
            asked["top_k"] = self.decoding.top_k
        return asked


@dataclass(slots=True, kw_only=True)
class _Record:
    """What has happened so far: it outlives whatever cuts the conversation off."""

    turns: int = 0
    last: Message | None = None
    """The agent's latest."""
    said: list[Message] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


async def play_tasks(
    player: ApiPlayer,
    env: Env,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[TaskResult]:
    """Plays every task `group_size` times, with the episode seed that a rollout of the same seed has."""
    places = asyncio.Semaphore(player.endpoint.settings.concurrency)
    total, finished = len(tasks) * group_size, 0

    async def play(index: int, member: int) -> Response:
        nonlocal finished
        async with places:
            episode_seed = derive_seed(seed, "luck", index, member)
            response = await play_episode(player, env.spawn(), tasks[index], episode_seed=episode_seed)
        finished += 1
        progress(finished, total)
        return response

    plays = [asyncio.create_task(play(index, member)) for index in range(len(tasks)) for member in range(group_size)]
    try:
        played = await asyncio.gather(*plays)
    finally:
        for one in plays:
            one.cancel()
    _report_failures(played)
    return [
        TaskResult(task=task, responses=tuple(played[place * group_size : (place + 1) * group_size]))
        for place, task in enumerate(tasks)
    ]


async def play_episode(player: ApiPlayer, env: Env, task: Task, *, episode_seed: int) -> Response:
    """Plays one episode on `env`, an instance spawned for it."""
    record = _Record()
    ending = await conclude(
        env, lambda clock: _converse(player, env, task, episode_seed, record, clock), seconds=player.limits.seconds
    )
    return Response(
        stop=ending.stop,
        turns=record.turns,
        answer=None if record.last is None else read_answer(record.last),
        rewards=record.rewards,
        metrics=record.metrics,
        seconds=ending.seconds,
        failure=ending.failure,
        messages=tuple(record.said),
    )


async def _converse(
    player: ApiPlayer, env: Env, task: Task, episode_seed: int, record: _Record, clock: asyncio.Timeout
) -> StopReason:
    """Records turns until somebody ends the episode, and says who."""
    with boundary("reset"):
        conversation = list(await env.reset(task, episode_seed))
    record.said += conversation
    for number in range(player.limits.max_turns):
        request = player.request(conversation, env, derive_seed(episode_seed, "turn", number))
        try:
            message = await player.endpoint.complete(request, turn=number, lose=lambda lost: _give_back(clock, lost))
        except ContextFullError as error:
            if number == 0:  # not what the agent has read, but what it is asked to read and write
                raise EpisodeFailure(f"endpoint: {error}") from error
            return StopReason.CONTEXT_FULL
        except EndpointDownError as error:
            raise EpisodeFailure(f"endpoint: {error}") from error
        record.turns, record.last = record.turns + 1, message
        record.said.append(message)
        with boundary("step"):
            step = await env.step(message)
        for channel, value in step.rewards.items():
            record.rewards[channel] = record.rewards.get(channel, 0.0) + value
        record.metrics.update(step.metrics)
        record.said += step.messages
        if step.done:
            return StopReason.TIME_UP if step.truncated else StopReason.DONE
        conversation = [*conversation, message, *step.messages] if step.rewrites is None else list(step.rewrites)
    return StopReason.MAX_TURNS


def _give_back(clock: asyncio.Timeout, seconds: float) -> None:
    if (when := clock.when()) is not None:
        clock.reschedule(when + seconds)


def _report_failures(played: Sequence[Response]) -> None:
    failed = [response for response in played if response.failed]
    if failed and len(failed) == len(played):
        raise EnvError(f"every episode failed, the first in {failed[0].failure}")
    if failed:
        _logger.warning("%d of %d episodes failed, the first in %s", len(failed), len(played), failed[0].failure)
