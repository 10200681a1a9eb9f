"""`turnwise gateway`: a model behind the gateway by itself; clients begin the episodes, and trajectories are stored.

Invariant: a session begins with its first request, under the API key or the path that names it, and ends by
`POST /sessions/{id}/end`, by silence, or with the server; each that took a turn is stored, one file a session.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from turnwise.agents import PolicyAgent
from turnwise.errors import RenderError, TurnwiseError
from turnwise.gateway.chat import ChatRequest
from turnwise.gateway.env import Score, SessionEnv
from turnwise.gateway.server import Gateway
from turnwise.gateway.session import Ended, Event, Session, call_in
from turnwise.render import Render
from turnwise.rollout import Limits, run_episode
from turnwise.runs.directory import StoredSessions
from turnwise.runs.store import write_trajectories
from turnwise.seeds import derive_seed
from turnwise.types import Group, Message, Task, Trajectory

logger = logging.getLogger(__name__)

Follow: TypeAlias = Callable[[Gateway], Awaitable[None]]
"""Loads newer weights while the gateway serves."""

_LONGEST_NAME: Final = 200
_MOST_SESSIONS: Final = 4096


class CollectedEnv(SessionEnv):
    """The episode of a session that a client began; silence ends it."""

    def __init__(self, gateway: Gateway, session: Session, render: Render, *, idle: float) -> None:
        super().__init__()
        self._gateway, self._session, self._render, self._idle = gateway, session, render, idle

    async def begin(self, task: Task, episode_seed: int) -> Session:
        return self._session

    async def wait(self) -> Event:
        try:
            async with asyncio.timeout(self._idle):
                return await self._session.next()
        except TimeoutError:
            return Ended(metrics={"idle": 1.0})

    def find_fault(self, request: ChatRequest) -> str | None:
        try:
            self._render.start(request.messages, request.tools)
        except RenderError as error:
            return str(error)
        return None

    async def score(self, ended: Ended, conversation: tuple[Message, ...]) -> Score:
        return Score()

    async def stop(self) -> None:
        self._gateway.forget(self._session)


@dataclass(slots=True, kw_only=True)
class Collector:
    """Plays every session that a client begins, and writes its trajectory into `folder`."""

    policy: PolicyAgent
    limits: Limits
    folder: Path | None
    idle: float
    show: Callable[[str], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    gateway: Gateway | None = None
    stored: int = 0
    _playing: dict[asyncio.Task[None], Session] = field(default_factory=dict)

    def begin(self, name: str) -> Session | None:
        """Opens a session from the server's thread."""
        assert self.gateway is not None, "it serves"
        if len(name) > _LONGEST_NAME or len(self._playing) >= _MOST_SESSIONS:
            return None
        session = self.gateway.open(name, self.loop)
        call_in(self.loop, lambda: self._start(session))
        return session

    def _start(self, session: Session) -> None:
        task = self.loop.create_task(self._play(session))
        self._playing[task] = session
        task.add_done_callback(lambda done: self._playing.pop(done, None))

    async def _play(self, session: Session) -> None:
        assert self.gateway is not None, "it serves"
        env = CollectedEnv(self.gateway, session, self.policy.render, idle=self.idle)
        seed = derive_seed(0, "gateway", session.name)
        try:
            played = await run_episode(
                self.policy, env, Task(id=session.name), episode_seed=seed, limits=self.limits, session=session.name
            )
        except TurnwiseError as error:
            logger.warning("session %s: %s", session.name, error)
            return
        self._store(played)

    def _store(self, played: Trajectory) -> None:
        if not played.turns:
            return  # every request was refused, and its client told why
        self.show(describe(played))
        if self.folder is None:
            return
        group = Group(task=played.task, trajectories=(played,))
        path = StoredSessions(self.folder).trajectory_file("session", self.stored)
        write_trajectories(path, self.stored, [group], None, self.policy.render.decode)
        self.stored += 1

    async def finish(self) -> None:
        """Ends every session, and waits until they are stored."""
        for session in list(self._playing.values()):
            session.end(Ended())
        if self._playing:
            await asyncio.wait(list(self._playing), timeout=30.0)


async def serve(
    collector: Collector, *, host: str, port: int, ready: Callable[[str], None], follow: Follow | None = None
) -> None:
    """Serves until SIGINT or SIGTERM, then stores what is open; `ready` is called with the address."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        collector.loop.add_signal_handler(number, stopped.set)
    gateway = collector.gateway = Gateway(host=host, port=port, begin=collector.begin)
    with gateway.running():
        ready(gateway.url)
        waiting: list[asyncio.Future[object]] = [asyncio.ensure_future(stopped.wait())]
        if follow is not None:
            waiting.append(asyncio.ensure_future(follow(gateway)))
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in rest:
            one.cancel()
        await collector.finish()
        for one in done:
            one.result()  # a follower that broke says why


def describe(played: Trajectory) -> str:
    """`session a1: 3 turns in 2 rows, 96 tokens sampled, 1 break (compacted 1), reward 1`."""
    rows = sum(turn.opens_row for turn in played.turns)
    causes = {
        name.removeprefix("breaks_"): round(count)
        for name, count in played.metrics.items()
        if name.startswith("breaks_") and count
    }
    told = f" ({', '.join(f'{cause} {count}' for cause, count in causes.items())})" if causes else ""
    failure = f"; failed: {played.failure}" if played.failure else ""
    return (
        f"session {played.task.id}: {len(played.turns)} turns in {rows} rows, {played.action_tokens} tokens sampled, "
        f"{sum(causes.values())} breaks{told}, reward {played.reward:g}{failure}"
    )
