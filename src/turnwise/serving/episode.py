"""One episode of an environment, played from outside: by tool calls and by text, one move at a time.

Invariant: an episode is begun, played and closed in order, however many requests come at once; what a move pays is
counted once. What the environment's own code raises is an `EpisodeFailure` and ends the episode.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.envs.base import Env, close_env
from turnwise.envs.boundary import Boundary, EpisodeFailure
from turnwise.envs.contract import check_opening, check_step
from turnwise.errors import EnvError
from turnwise.types import Json, Message, Step, Task, ToolCall


class NotPlaying(Exception):
    """A move that no episode can take: none has begun, or it is over. The text says what to do."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """What an episode has paid so far, and whether it is over."""

    task: Task
    turns: int = 0
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    done: bool = False
    truncated: bool = False

    @property
    def reward(self) -> float:
        return math.fsum(self.rewards.values())

    def record(self, step: Step) -> None:
        """Adds what a move paid and measured."""
        for name, value in step.rewards.items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        self.metrics.update(step.metrics)
        self.done, self.truncated = step.done, step.truncated

    def describe(self) -> dict[str, Json]:
        """`{"done": true, "reward": 1.0, ...}`, for whoever plays."""
        return {
            "task": self.task.id,
            "turns": self.turns,
            "done": self.done,
            "truncated": self.truncated,
            "reward": self.reward,
            "rewards": dict(self.rewards),
            "metrics": dict(self.metrics),
        }


class ServedEpisode:
    """`await episode.reset(index=3)`, then `call` and `respond` until `episode.progress.done`; `close` at the end."""

    def __init__(self, env: Env, *, split: str = "train") -> None:
        self._env, self._split = env, split
        self._live: Env | None = None
        self._turn = asyncio.Lock()
        self._boundary = Boundary()
        self.progress: Progress | None = None

    @property
    def env(self) -> Env:
        """The environment of the running episode; before one, that which episodes are copied from."""
        return self._live or self._env

    async def reset(
        self, *, index: int | None = None, task: str | None = None, split: str | None = None, episode_seed: int = 0
    ) -> tuple[Message, ...]:
        """Begins an episode of the task at a place of its split, or of the one with this id."""
        async with self._turn:
            chosen = find_task(self._env, split or self._split, index, task)
            await self._close()
            live = self._env.spawn_for(chosen)
            self._live = live
            with self._boundary("reset"):
                opening = tuple(check_opening(await live.reset(chosen, episode_seed)))
            self.progress = Progress(task=chosen)
            return opening

    async def call(self, name: str, arguments: Mapping[str, Json]) -> Step:
        """Calls one tool, as a turn of the agent."""
        turn = self.progress.turns if self.progress else 0
        made = ToolCall(id=f"call-{turn}", name=name, arguments=json.dumps(arguments))
        return await self.act(Message(role="assistant", content="", tool_calls=(made,)))

    async def respond(self, text: str) -> Step:
        """Says something, as a turn of the agent: a move of a game, a final answer."""
        return await self.act(Message(role="assistant", content=text))

    async def act(self, message: Message) -> Step:
        """Takes a turn; `NotPlaying` where there is no episode that could."""
        async with self._turn:
            progress, live = self.progress, self._live
            if progress is None or live is None:
                raise NotPlaying("no episode has begun: reset first")
            if progress.done:
                raise NotPlaying(f"the episode is over, with reward {progress.reward:g}: reset to begin another")
            progress.turns += 1
            try:
                with self._boundary("step"):
                    step = check_step(await live.step(message))
            except EpisodeFailure:
                self.progress = None
                raise
            progress.record(step)
            return step

    async def close(self) -> None:
        async with self._turn:
            await self._close()

    async def _close(self) -> None:
        live, self._live, self.progress = self._live, None, None
        if live is not None:
            with self._boundary("close"):
                await close_env(live)


def find_task(env: Env, split: str, index: int | None, name: str | None) -> Task:
    """A task by its place in a split, or by its id; an EnvError that says which there are."""
    tasks = env.tasks(split)
    if name is not None:
        found = next((task for task in tasks if task.id == name), None)
        if found is None:
            raise EnvError(f"there is no task '{name}' in the split '{split}'; its first is '{tasks[0].id}'")
        return found
    place = index or 0
    if not 0 <= place < len(tasks):
        raise EnvError(f"there is no task {place} in the split '{split}', which has {len(tasks)}")
    return tasks[place]


def join_texts(messages: Sequence[Message]) -> str:
    """What an environment says, as one text."""
    return "\n\n".join(message.content for message in messages)
