"""Episodes per second in one process and in workers: `python benchmarks/workers.py`.

The agent answers at once, so this is what workers cost at the most: an engine that samples takes time of its own.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from turnwise.agents import ScriptedAgent
from turnwise.envs.base import Env
from turnwise.envs.workers.env import in_workers
from turnwise.rollout import run_groups
from turnwise.types import Message, Step, Task

_TURNS = 5


class Busy(Env):
    """Five turns, each of which computes for so many milliseconds of processor time."""

    def __init__(self, *, milliseconds: float) -> None:
        self._seconds = milliseconds / 1e3

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=str(place)) for place in range(8)]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._turn = 0
        return [Message(role="user", content="go")]

    async def step(self, message: Message) -> Step:
        deadline = time.thread_time() + self._seconds
        while time.thread_time() < deadline:
            pass
        self._turn += 1
        return Step(messages=(Message(role="user", content="on"),), rewards={"r": 1.0}, done=self._turn == _TURNS)


def measure(env: Env, episodes: int) -> float:
    """Episodes per second."""
    tasks, agent = env.tasks("train"), ScriptedAgent(replies=["go"] * _TURNS)
    began = time.monotonic()
    asyncio.run(run_groups(agent, env, tasks, group_size=episodes // len(tasks), seed=0, concurrency=64))
    return episodes / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Episodes per second in one process and in workers.")
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    for milliseconds, episodes in ((0.0, 800), (20.0, 64)):
        env = Busy(milliseconds=milliseconds)
        apart = in_workers(env, workers)
        measure(apart, 64)
        alone, divided = measure(env, episodes), measure(apart, episodes)
        apart.host.close()
        sys.stdout.write(
            f"steps of {milliseconds:g} ms: {alone:.1f} episodes/s in one process, {divided:.1f} in {workers} workers\n"
        )


if __name__ == "__main__":
    main()
