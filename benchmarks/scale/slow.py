"""Environments whose tools take their time, as those behind a network do."""

import asyncio
import time
from collections.abc import Sequence

from turnwise.envs.base import Env
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.types import Message, Step, Task

_TURNS = 5


class SlowEncyclopedia(Encyclopedia):
    """`SlowEncyclopedia(seconds=0.2, hops=[2])`: every turn with a search in it waits so long for the answer."""

    def __init__(self, *, seconds: float = 0.2, hops: Sequence[int] = (2,), lazy: float = 0.6) -> None:
        super().__init__(hops=hops, lazy=lazy)
        self._seconds = seconds

    async def step(self, message: Message) -> Step:
        if message.tool_calls:
            await asyncio.sleep(self._seconds)
        return await super().step(message)


class SlowVowels(Env):
    """Asks for vowels, five times; a scorer takes its time over every reply. A model learns it from nothing."""

    def __init__(self, *, seconds: float = 0.2) -> None:
        self._seconds = seconds

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{place}") for place in range(64)]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._shares: list[float] = []
        return [Message(role="user", content="a e i o u, please")]

    async def _wait(self) -> None:
        await asyncio.sleep(self._seconds)

    async def step(self, message: Message) -> Step:
        await self._wait()
        self._shares.append(sum(letter in "aeiou" for letter in message.content) / max(len(message.content), 1))
        paid = {"vowels": self._shares[-1] / _TURNS}
        if len(self._shares) < _TURNS:
            return Step(messages=(Message(role="user", content="more"),), rewards=paid)
        success = sum(self._shares) / _TURNS > 0.5
        return Step(rewards=paid, done=True, metrics={"success": float(success)})


class StandingVowels(SlowVowels):
    """The same by code that never yields: a process has one such turn at a time. Few tasks, which a run reads first."""

    def tasks(self, split: str) -> Sequence[Task]:
        return super().tasks(split)[:8]

    async def _wait(self) -> None:
        time.sleep(self._seconds)


class Idle(Env):
    """Turns in which nothing happens."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id="idle")]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        return [Message(role="user", content="your move")]

    async def step(self, message: Message) -> Step:
        return Step(messages=(Message(role="user", content="on"),), rewards={"paid": 1.0})
