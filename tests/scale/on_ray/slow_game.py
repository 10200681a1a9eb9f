"""A game whose answers take their time, as those of real tools do: an actor can be killed in the middle of it."""

import asyncio
import os
import random
from pathlib import Path

from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.types import Message, Step, Task


class SlowGame(Env):
    """Each turn waits `seconds`, then shows a number of the episode's own seed; what it pays follows from that seed.

    The first `quick` turns do not wait. Episodes note in the folder `diary` that they wait and that they have ended,
    and in which process and by which file.
    """

    def __init__(self, seconds: float = 0.2, turns: int = 2, needs: str = "", diary: str = "", quick: int = 0) -> None:
        if needs and needs not in os.environ:
            raise EnvError(f"the game needs {needs}")
        self._seconds, self._turns, self._diary, self._quick = seconds, turns, diary, quick

    def tasks(self, split):
        return [Task(id=f"{split}-{place}", seed=place) for place in range(8)]

    async def reset(self, task, episode_seed):
        self._seed, self._luck, self._left = episode_seed, random.Random(episode_seed), self._turns
        return [Message(role="user", content=f"task {task.seed}")]

    async def close(self):
        self._note("ended")

    def _note(self, event):
        if self._diary:
            (Path(self._diary) / f"{event}-{self._seed}").write_text(f"{os.getpid()} {Path(__file__).resolve()}")

    async def step(self, message):
        if self._turns - self._left >= self._quick:
            self._note("waits")
            await asyncio.sleep(self._seconds)
        self._left -= 1
        paid = self._luck.random()
        if self._left:
            return Step(messages=(Message(role="user", content=f"{paid:.3f}"),), rewards={"luck": paid})
        return Step(done=True, rewards={"luck": paid}, metrics={"success": float(paid > 0.5)})
