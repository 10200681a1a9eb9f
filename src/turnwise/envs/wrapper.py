"""`WrappedEnv`: an episode's environment inside another one that changes a part of it, such as rewards or memory.

Invariant: what a subclass does not override is the inner environment's own, whatever that is.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from turnwise.envs.base import Env, close_env
from turnwise.envs.host import Host
from turnwise.types import Message, Step, Task, ToolSpec, Turn, TurnRequest

T = TypeVar("T")


class WrappedEnv(Env):
    """`WrappedEnv(env.spawn_for(task))`; made for one episode."""

    def __init__(self, env: Env) -> None:
        self._env = env

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._env.tools

    def tasks(self, split: str) -> Sequence[Task]:
        return self._env.tasks(split)

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        return await self._env.reset(task, episode_seed)

    async def step(self, message: Message) -> Step:
        return await self.receive(Turn(message=message))

    async def receive(self, turn: Turn) -> Step:
        return await self._env.receive(turn)

    def turn_request(self) -> TurnRequest:
        return self._env.turn_request()

    async def overflow(self) -> Step | None:
        return await self._env.overflow()

    async def close(self) -> None:
        await close_env(self._env)

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin._env = self._env.fork()
        return twin

    def state_key(self) -> str | None:
        return self._env.state_key()

    @property
    def prototype(self) -> Env:
        return self._env.prototype

    @property
    def host(self) -> Host:
        return self._env.host

    @property
    def has_deadline(self) -> bool:
        return self._env.has_deadline

    @property
    def has_expert(self) -> bool:
        return self._env.has_expert

    def expert(self) -> Message:
        return self._env.expert()

    def expert_summary(self) -> Message:
        return self._env.expert_summary()

    @property
    def keeps_conversation(self) -> bool:
        return self._env.keeps_conversation

    async def run_sync(self, method: Callable[[], T]) -> T:
        return await self._env.run_sync(method)
