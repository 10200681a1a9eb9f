"""`WorkerEnv`: any environment, with its episodes in worker processes that can be killed.

Invariant: an episode is fixed by (task, episode seed, the agent's messages), so one whose worker ended is moved: its
calls so far are made again in another worker, and it goes on if they have the same answers. Nothing is scored twice,
and the agent notices nothing. One that seems to end its workers is moved into one for itself; if two end in which there
was no other call, the episode has failed.
"""

import asyncio
import itertools
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar, cast

from turnwise.envs.base import Env
from turnwise.envs.boundary import EpisodeFailure, RemoteError
from turnwise.envs.host import Host
from turnwise.envs.registry import EnvSettings, describe_env
from turnwise.envs.workers.fleet import Fleet
from turnwise.envs.workers.nursery import LocalNursery
from turnwise.envs.workers.protocol import Answer, Birth, Method, Nursery, Opening, Reset
from turnwise.envs.workers.worker import Worker, WorkerLost
from turnwise.errors import ConfigError, EnvError
from turnwise.types import Message, Step, Task, ToolSpec

T = TypeVar("T")

_MAX_DEATHS = 20
_LOOK = 0.02
"""Seconds between two looks at a call that was cancelled."""


def in_workers(
    env: Env,
    workers: int,
    *,
    settings: EnvSettings | None = None,
    max_deaths: int = _MAX_DEATHS,
    open_nursery: Callable[[Birth], Nursery] = LocalNursery,
) -> "WorkerEnv":
    """The environment with its episodes in so many processes: `turnwise.train(env=in_workers(MyEnv(), 4), ...)`.

    `env` itself only lists tasks and tools; each worker makes one of its own, from `settings` or as `env` was made.
    `open_nursery` decides where: on this machine, unless it is given.
    """
    name = type(env.prototype).__name__
    if not hasattr(os, "fork"):
        raise ConfigError("env.workers: this system cannot fork processes: set it to 0")
    kind = type(env.prototype)
    if kind.receive is not Env.receive or kind.turn_request is not Env.turn_request:
        raise ConfigError(
            f"env.workers: {name} reads the agent's tokens, so it runs in the trainer's process: set it to 0"
        )
    birth = _birth(env, settings)
    fleet = Fleet(lambda: open_nursery(birth), workers=workers, max_deaths=max_deaths)
    # Errors name an environment by its class: so this one has the name of the user's.
    named = cast(type[WorkerEnv], type(name, (WorkerEnv,), {"__module__": kind.__module__}))
    return named(env, fleet)


class WorkerEnv(Env):
    """Made by `in_workers`; `env.host.close()` ends its processes."""

    def __init__(self, prototype: Env, fleet: Fleet) -> None:
        self._prototype, self._fleet = prototype, fleet
        self._overflows = type(prototype.prototype).overflow is not Env.overflow
        self._worker: Worker | None = None
        self._episode = 0
        self._tools: tuple[ToolSpec, ...] | None = None
        self._history: list[tuple[Method, Reset | Message | None, object]] = []
        self._attempts = itertools.count()
        self._suspicions = self._ended_workers = 0
        """Workers that ended during its calls, and those of them in which there was no other call."""
        self._answer: Answer | None = None
        self._where, self._faults = "", False
        self._home: WorkerEnv | None = None
        """What the workers end with: they last as long as an episode of theirs."""
        self._ended = weakref.finalize(self, fleet.close)

    @property
    def prototype(self) -> Env:
        return self._prototype.prototype

    @property
    def host(self) -> Host:
        return _Workers(self)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._prototype.tools if self._tools is None else self._tools

    def tasks(self, split: str) -> Sequence[Task]:
        return self._prototype.tasks(split)

    def with_faults(self) -> Self:
        struck = self.spawn()
        struck._faults = True
        return struck

    def spawn(self) -> Self:
        fresh = super().spawn()
        fresh._worker, fresh._tools, fresh._answer = None, None, None
        fresh._history, fresh._attempts = [], itertools.count()
        fresh._suspicions = fresh._ended_workers = 0
        fresh._home = self
        return fresh

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        self._history.clear()
        self._episode, self._where = self._fleet.new_episode(), f"task '{task.id}'"
        answer = await self._call("reset", Reset(task, episode_seed, self._faults, 0))
        opening = answer.value
        assert isinstance(opening, Opening)
        self._tools = opening.tools
        return opening.messages

    async def step(self, message: Message) -> Step:
        answer = await self._call("step", message)
        assert isinstance(answer.value, Step)
        return answer.value

    async def overflow(self) -> Step | None:
        if not self._overflows:
            return None
        answer = await self._call("overflow", None)
        return cast(Step | None, answer.value)

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        finished = False
        try:
            while worker.hangs_in(self._episode):  # until it heeds its cancellation, or its worker is killed
                await asyncio.sleep(_LOOK)
            if not worker.cause:
                await worker.call(self._episode, "close", None, where=f"close of {self._where}")
                finished = True
        except WorkerLost:
            pass  # what it held is freed
        except asyncio.CancelledError:
            self._fleet.kill_if_it_hangs(worker, self._episode, f"close of {self._where}")
            raise
        finally:
            self._fleet.release(worker, self._episode, finished=finished)

    @property
    def has_deadline(self) -> bool:
        return self._prototype.has_deadline

    @property
    def has_expert(self) -> bool:
        return self._prototype.has_expert

    def expert(self) -> Message:
        if not self.has_expert:
            return self._prototype.expert()  # its error says what to do
        raise EnvError("its expert is in a worker process: await env.run_sync(env.expert)")

    def state_key(self) -> str | None:
        if self._answer is not None and self._answer.state_key_failure:
            raise RemoteError(self._answer.state_key_failure)
        return None if self._answer is None else self._answer.state_key

    async def run_sync(self, method: Callable[[], T]) -> T:
        name = getattr(method, "__name__", "")
        if name in ("expert", "expert_summary") and self.has_expert:
            answer = await self._call(cast(Method, name), None, keeps_state_key=True)
            return cast(T, answer.value)
        return method()

    async def _call(self, method: Method, argument: Reset | Message | None, *, keeps_state_key: bool = False) -> Answer:
        where = f"{method} of {self._where}"
        while True:
            try:
                worker = self._worker or await self._move(where)
                answer = await worker.call(self._episode, method, argument, where=where)
                break
            except WorkerLost as lost:
                self._lose(lost, method)
            except asyncio.CancelledError:
                if self._worker is not None:
                    self._fleet.kill_if_it_hangs(self._worker, self._episode, where)
                raise
        worker.reserved = False
        self._history.append((method, argument, answer.value))
        if not keeps_state_key:
            self._answer = answer
        return answer

    def _lose(self, lost: WorkerLost, method: Method) -> None:
        """The worker is gone; the next call moves the episode, unless it seems to be to blame."""
        if self._worker is not None:
            self._worker.episodes.discard(self._episode)
        self._worker = None
        self._suspicions += lost.suspect
        self._ended_workers += lost.culprit
        if self._ended_workers > 1:
            raise EpisodeFailure(f"{method}: its worker process ended twice, {lost.cause}")

    async def _move(self, where: str) -> Worker:
        """A worker that knows the episode so far; one that may be dangerous gets a worker for itself."""
        attempt = next(self._attempts)
        alone = self._ended_workers > 0 or self._suspicions > 1
        worker = self._worker = await self._fleet.place(self._episode, alone=alone)
        if worker.cause or not worker.ready:
            raise WorkerLost(worker.cause or worker.failure)
        self._fleet.counts["moved"] += bool(self._history)
        for method, argument, value in self._history:
            if isinstance(argument, Reset):
                argument = replace(argument, attempt=attempt)
            try:
                answer = await worker.call(self._episode, method, argument, where=where)
            except RemoteError as error:
                raise EpisodeFailure(f"{method}: when it was moved to another worker: {error}") from None
            if answer.value != value:
                raise EpisodeFailure(
                    f"{method}: it cannot be moved to another worker, as it answers otherwise when it is played again: "
                    "make it follow from its seeds"
                )
        return worker


class _Workers(Host):
    """The processes of an environment, and where in them its episode is."""

    def __init__(self, env: WorkerEnv) -> None:
        self._env = env

    @property
    def workers(self) -> int:
        return self._env._fleet.size

    def counts(self) -> dict[str, int]:
        counts = self._env._fleet.counts
        found = {name: counts[name] for name in ("deaths", "killed", "moved")}
        return found | ({"nodes_lost": counts["nodes_lost"]} if counts["nodes_lost"] else {})

    def close(self) -> None:
        self._env._ended()

    def current_line(self) -> str:
        worker = self._env._worker
        return "" if worker is None else worker.line(self._env._episode)

    def is_held_up(self) -> bool:
        worker, episode = self._env._worker, self._env._episode
        if worker is None:
            return self._env._fleet.is_waiting(episode)
        return worker.held_by() not in (0, episode)


def importable_name(cls: type) -> str | None:
    """The name by which another process finds a class: by its file where its module has no name there; else None."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    in_file = cls.__module__ == "__main__" or cls.__module__.startswith("turnwise_user_")
    if "<locals>" in cls.__qualname__ or (in_file and not file):
        return None
    return f"{Path(file).resolve() if in_file and file else cls.__module__}:{cls.__qualname__}"


def _birth(env: Env, settings: EnvSettings | None) -> Birth:
    cls = type(env.prototype)
    described = settings or describe_env(env)
    assert isinstance(described, EnvSettings), "a mixture is placed one by one"
    name = importable_name(cls)
    folders = tuple(sys.path)
    if not described.unrecorded and name is not None:
        made = described.model_copy(update={"name": name, "workers": 0})
        return Birth(settings=made, pickled=b"", folders=folders)
    try:
        return Birth(settings=None, pickled=pickle.dumps(env), folders=folders)
    except Exception as error:
        raise ConfigError(
            f"env.workers: {cls.__name__} cannot be sent to a worker ({type(error).__name__}: {error}): define it in a "
            "file of its own, or make it from plain arguments"
        ) from error
