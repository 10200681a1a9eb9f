"""Environments that hang, crash and kill their process, for tests of workers."""

import asyncio
import ctypes
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from turnwise.envs.base import Env
from turnwise.envs.tool_env import ToolEnv
from turnwise.rewards import reward
from turnwise.seeds import derive_seed
from turnwise.tools import tool
from turnwise.types import Message, Step, Task, ToolCall


class Counting(Env):
    """Counts to a number that the episode seed chooses; `data` of a task may hold a `fault` and the turn it comes in.

    Each step costs `work` seconds of computing. A fault in `once` (a folder) comes only once per task.
    """

    def __init__(self, *, work: float = 0.0, once: str = "", faults: dict[str, str] | None = None) -> None:
        self._work, self._once, self._faults = work, once, faults or {}

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{place}", seed=place) for place in range(16)]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._task, self._turn = task, 0
        self._random = random.Random(derive_seed(episode_seed, "noise"))
        self._end = self._random.randint(2, 5)
        await self._meet("reset")
        return [Message(role="user", content=f"count {self._random.random():.3f}")]

    async def step(self, message: Message) -> Step:
        self._turn += 1
        deadline = time.process_time() + self._work
        while time.process_time() < deadline:
            pass
        await self._meet(str(self._turn))
        paid = {"noise": self._random.random(), "length": len(message.content) / 100}
        done = self._turn == self._end
        text = Message(role="user", content=f"{self._turn} {self._random.random():.3f}")
        metrics = {"success": float(self._end > 3), "turns": float(self._turn)}
        return Step(messages=() if done else (text,), rewards=paid, done=done, metrics=metrics if done else {})

    def state_key(self) -> str:
        return f"{self._task.id} {self._turn}"

    def expert(self) -> Message:
        return Message(role="assistant", content=f"guess {self._random.randint(0, 99)}")

    async def _meet(self, moment: str) -> None:
        fault = self._faults.get(f"{self._task.id}/{moment}")
        if fault is None:
            return
        if self._once:
            mark = Path(self._once) / f"{self._task.id}-{moment}".replace("/", "-")
            if mark.exists():
                return
            mark.touch()
        await strike(fault)


class Slow(Counting):
    """Takes its time over each step."""

    def __init__(self, *, seconds: float = 0.05) -> None:
        super().__init__()
        self._seconds = seconds

    async def step(self, message: Message) -> Step:
        await asyncio.sleep(self._seconds)
        return await super().step(message)


async def strike(fault: str) -> None:
    """Does what can go wrong."""
    match fault:
        case "sleep":
            await asyncio.sleep(3600)
        case "block":
            time.sleep(3600)
        case "spin":
            while True:
                pass
        case "deaf":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        case "raise":
            raise KeyError("gold")
        case "exit":
            sys.exit(0)
        case "_exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case _:
            raise AssertionError(fault)


class Desk(ToolEnv):
    """Tools of every kind, a state, and rewards that look into it."""

    def __init__(self, *, spin: bool = False) -> None:
        tasks = [{"question": f"What is {key}?", "key": key} for key in "abcdefgh"]
        super().__init__(tasks=tasks, system="Ask.", process={"found": 0.1})
        self._spin = spin

    def begin(self, task: Task, episode_seed: int) -> None:
        self.key, self.luck = task.data["key"], random.Random(derive_seed(episode_seed, "luck"))
        self.thread = threading.get_ident()

    @tool(timeout=0.3)
    def look_up(self, key: str) -> str:
        """Looks a key up.

        Args:
            key: Which one.
        """
        while self._spin:
            pass
        assert threading.get_ident() == self.thread, "sync code of an episode has one thread"
        return f"{key} is {self.luck.randint(0, 9)}"

    @tool(timeout=0.3)
    async def ponder(self, key: str) -> str:
        """Thinks about a key.

        Args:
            key: Which one.
        """
        await asyncio.sleep(0.001)
        return f"{key}?"

    @tool
    def fail(self) -> str:
        """Always fails."""
        raise OSError("no disk")

    def expert(self) -> Message:
        """Calls a tool five times."""
        if self.turns_taken == 5:
            return Message(role="assistant", content="done")
        name = "look_up" if self.turns_taken % 2 else "ponder"
        call = ToolCall(id="1", name=name, arguments=json.dumps({"key": self.key}))
        return Message(role="assistant", content="", tool_calls=(call,))

    @reward
    def lucky(self, episode) -> float:
        assert episode.env is self
        return self.luck.random()


class Restless(Counting):
    """Takes its noise from the clock."""

    async def reset(self, task: Task, episode_seed: int):
        return await super().reset(task, time.monotonic_ns())


class OnlyHere(Counting):
    """Can be made in the process of the tests alone."""

    home = os.environ.setdefault("TURNWISE_TEST_HOME", str(os.getpid()))

    def __init__(self) -> None:
        super().__init__()
        if str(os.getpid()) != self.home:
            raise OSError("no such luck")


class Litter(Env):
    """Leaves a process behind."""

    def __init__(self, *, folder: str) -> None:
        self._folder = folder

    async def reset(self, task, episode_seed):
        process = await asyncio.create_subprocess_exec("sleep", "600")
        (Path(self._folder) / "pid").write_text(str(process.pid))
        return [Message(role="user", content="?")]

    async def step(self, message):
        return Step(done=True)


class Warns(Counting):
    """Warns of the sea."""

    async def reset(self, task, episode_seed):
        logging.getLogger("sailing").warning("the sea is %s", "rough")
        return await super().reset(task, episode_seed)
