"""Chaos: an environment whose tool calls hang, crash and kill their process at random, to see that a run survives it.

Invariant: what strikes follows from the episode's seed, its calls and the workers it was on before; so a run with chaos
is repeated by its seed, and an episode that is moved after its worker was killed may go on. Only episodes that are
spawned from `with_faults()` are struck: those of training.
"""

import asyncio
import contextvars
import functools
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from pydantic import Field

from turnwise.envs.base import Env
from turnwise.envs.tool_env import ToolEnv
from turnwise.envs.wrapper import WrappedEnv
from turnwise.errors import ConfigError
from turnwise.seeds import derive_seed
from turnwise.settings import Settings
from turnwise.tools import Tool
from turnwise.types import Message, Step, Task, Turn

attempt: contextvars.ContextVar[int | None] = contextvars.ContextVar("attempt", default=None)
"""How many workers an episode was on before; None: this process is no worker."""
_dice: contextvars.ContextVar[random.Random | None] = contextvars.ContextVar("dice", default=None)

_FOR_EVER = 1e6


class ChaosSettings(Settings):
    """Faults that are planted into tool calls, or into steps where the environment has no tools."""

    hang: float = Field(default=0.0, ge=0, le=1)
    """The share of calls that never return."""
    crash: float = Field(default=0.0, ge=0, le=1)
    """The share of calls that raise."""
    kill: float = Field(default=0.0, ge=0, le=1)
    """The share of calls that kill the process they run in; needs `env.workers`."""


def parse_chaos(text: str) -> list[str]:
    """`hang=.05,kill=.01` as overrides of settings: `["env.chaos.hang=.05", "env.chaos.kill=.01"]`."""
    parts = [part.strip() for part in text.split(",")]
    if not all("=" in part for part in parts):
        raise ConfigError(f"--chaos: '{text}' is not a list of shares: write hang=.05,crash=.05,kill=.01")
    return [f"env.chaos.{part}" for part in parts]


def with_chaos(env: Env, settings: ChaosSettings | None) -> Env:
    """The environment with faults to come, or as it is."""
    return env if settings is None else ChaosEnv(env, settings)


class ChaosEnv(WrappedEnv):
    """Another environment, struck by faults where `with_faults()` was called."""

    def __init__(self, inner: Env, settings: ChaosSettings) -> None:
        if isinstance(inner, ToolEnv):
            inner = inner.with_tools(functools.partial(_strike_before, settings=settings))
        super().__init__(inner)
        self._settings, self._struck = settings, False
        self._random: random.Random | None = None

    def with_faults(self) -> Self:
        struck = super().spawn()
        struck._struck = True
        return struck

    def spawn(self) -> Self:
        fresh = super().spawn()
        fresh._env = self._env.spawn()
        return fresh

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        if self._struck:
            self._random = random.Random(derive_seed(episode_seed, "chaos", attempt.get() or 0))
        return await super().reset(task, episode_seed)

    async def step(self, message: Message) -> Step:
        _dice.set(self._random)  # tools, in whatever task or thread, have a copy of this context
        if self._random is not None and not isinstance(self._env, ToolEnv):
            fault = _draw(self._random, self._settings)
            if fault == "hang" and (attempt.get() is None or self._random.random() < 0.5):
                await asyncio.sleep(_FOR_EVER)
            _strike(fault, can_hang=True)
        return await self._env.step(message)

    async def receive(self, turn: Turn) -> Step:
        """By `step`, which faults strike, unless the environment receives turns itself."""
        return await (Env.receive(self, turn) if type(self._env).receive is Env.receive else super().receive(turn))


def _strike_before(tool: Tool, *, settings: ChaosSettings) -> Tool:
    """The same tool, whose function may not get as far as its first line."""
    function = tool.function

    @functools.wraps(function)
    def call(*args: object, **values: object) -> object:
        if (dice := _dice.get()) is not None:
            # Code that runs inline can only be ended with its process.
            _strike(_draw(dice, settings), can_hang=not tool.quick or attempt.get() is not None)
        return function(*args, **values)

    @functools.wraps(function)
    async def call_async(*args: object, **values: object) -> object:
        if (dice := _dice.get()) is not None:
            fault = _draw(dice, settings)
            if fault == "hang":
                await asyncio.sleep(_FOR_EVER)
            _strike(fault, can_hang=False)
        return await function(*args, **values)  # type: ignore[misc]  # it is async

    return replace(tool, function=call_async if tool.is_async else call)


def _draw(dice: random.Random, settings: ChaosSettings) -> str:
    drawn = dice.random()
    for fault, share in (("hang", settings.hang), ("crash", settings.crash), ("kill", settings.kill)):
        if drawn < share:
            return fault
        drawn -= share
    return ""


def _strike(fault: str, *, can_hang: bool) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang" and can_hang:
        time.sleep(_FOR_EVER)
    if fault:
        raise RuntimeError("chaos: this call was to crash")
