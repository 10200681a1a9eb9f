"""A game whose answers take their time, as those of real tools do: an actor can be killed in the middle of it."""

import asyncio
import os
import random

from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.types import Message, Step, Task


class SlowGame(Env):
    """Each turn waits `seconds`, then shows a number of the episode's own seed; what it pays follows from that seed."""

    def __init__(self, seconds: float = 0.2, turns: int = 2, needs: str = "") -> None:
        if needs and needs not in os.environ:
            raise EnvError(f"the game needs {needs}")
        self._seconds, self._turns = seconds, turns

    def tasks(self, split):
        return [Task(id=f"{split}-{place}", seed=place) for place in range(8)]

    async def reset(self, task, episode_seed):
        self._luck, self._left = random.Random(episode_seed), self._turns
        return [Message(role="user", content=f"task {task.seed}")]

    async def step(self, message):
        await asyncio.sleep(self._seconds)
        self._left -= 1
        paid = self._luck.random()
        if self._left:
            return Step(messages=(Message(role="user", content=f"{paid:.3f}"),), rewards={"luck": paid})
        return Step(done=True, rewards={"luck": paid}, metrics={"success": float(paid > 0.5)})
