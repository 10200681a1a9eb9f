"""One episode, from a task to a trajectory: the one loop in which an agent and an environment converse.

Invariant: only this loop decides when an episode ends, and whatever ends it, the turns taken so far are in the
trajectory with the reason. Who acts is a value (`Agent`): the loop asks it for a move and knows nothing of its kind.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from turnwise.agents.base import Agent, AgentStopped, Move, Session
from turnwise.envs.base import Env
from turnwise.envs.boundary import Boundary
from turnwise.envs.contract import check_opening, check_step
from turnwise.envs.memory import Compacting
from turnwise.rollout.boundary import EpisodeEnd, leaving_behind, run_with_limits
from turnwise.rollout.limits import Limits
from turnwise.seeds import derive_seed
from turnwise.tools.watchdog import calls_foreign_code, playing, watching
from turnwise.types import Message, Step, StopReason, Task, Trajectory, Turn


async def run_episode(
    agent: Agent, env: Env, task: Task, *, episode_seed: int, limits: Limits | None = None, session: str = "episode"
) -> Trajectory:
    """Plays one episode on `env`, an instance spawned for it; `session` names the conversation to an engine."""
    with watching():
        return await leaving_behind(
            lambda leave: play_episode(
                agent, env, task, episode_seed=episode_seed, limits=limits or Limits(), session=session, leave=leave
            )
        )


async def play_episode(
    agent: Agent,
    env: Env,
    task: Task,
    *,
    episode_seed: int,
    limits: Limits,
    session: str,
    leave: Callable[[Trajectory], None],
) -> Trajectory:
    """The same in the present task; `leave` gets the trajectory where environment code holds the task for ever."""
    playing.set(task.id)
    memory = _remembering(env, limits)
    env = memory or env
    live = agent.open(env, session=session, context_tokens=limits.context_tokens)
    if memory is not None:
        memory.context_tokens = live.room  # nothing is in the conversation yet
    episode = _Conversation(session=live, env=env, task=task, episode_seed=episode_seed, limits=limits)
    ending: list[asyncio.Task[None]] = []

    def leave_session(end: EpisodeEnd) -> None:
        ending.append(asyncio.ensure_future(live.end()))
        leave(episode.finish(end))

    try:
        end = await run_with_limits(
            env, task, episode.run, boundary=episode.boundary, limits=limits, leave=leave_session
        )
    finally:
        if not ending:
            await live.end()
    return episode.finish(end)


def _remembering(env: Env, limits: Limits) -> Compacting | None:
    """The environment with the memory that the limits ask for, unless it keeps the conversation itself."""
    if limits.compaction is None or env.keeps_conversation:
        return None
    return Compacting(env, limits.compaction)


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """One episode under way; what it has recorded outlives whatever cuts it off."""

    session: Session
    env: Env
    task: Task
    episode_seed: int
    limits: Limits
    turns: list[Turn] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    tail_ids: tuple[int, ...] = ()
    """What the agent reads next, in the row it is in: known between a step and the next move, and empty otherwise."""
    messages: list[Message] = field(default_factory=list)
    boundary: Boundary = field(default_factory=Boundary)

    async def run(self, clock: asyncio.Timeout) -> StopReason:
        """Records turns until the environment, the agent or a limit ends the episode, and returns which."""
        env, session, limits = self.env, self.session, self.limits
        with self.boundary("reset"):
            messages = check_opening(await env.reset(self.task, self.episode_seed))
            tools = env.tools
        self.messages += messages
        session.begin(messages, tools, lambda seconds: _give_back(clock, seconds))
        budget = limits.episode_tokens
        for number in range(limits.max_turns):
            if _is_full(session) and (full := await self._make_room()) is not None:
                return full
            room = session.room
            if budget is not None and budget < 1:
                return StopReason.TOKEN_BUDGET
            max_tokens = min(filter(None, (limits.turn_tokens, room, budget)))
            with self.boundary("state_key"):
                state_key = await env.run_sync(env.state_key)
            asked = time.perf_counter()
            try:
                move = await session.act(max_tokens=max_tokens, seed=derive_seed(self.episode_seed, "turn", number))
            except AgentStopped as stopped:
                return stopped.stop
            turn = _make_turn(move, state_key, time.perf_counter() - asked)
            step = await self._take(turn, move.message)
            self.tail_ids = await session.observe(step)
            if step.done:
                return _why_done(step)
            if budget is not None:
                budget -= len(turn.action_ids)
        return StopReason.MAX_TURNS

    def finish(self, end: EpisodeEnd) -> Trajectory:
        """What was recorded, and who ended it."""
        return Trajectory(
            task=self.task,
            turns=tuple(self.turns),
            stop=end.stop,
            episode_seed=self.episode_seed,
            metrics=self.metrics,
            seconds=end.seconds,
            failure=end.failure,
            tail_ids=self.tail_ids if end.stop.truncated else (),
            messages=() if self.session.has_tokens else tuple(self.messages),
        )

    async def _take(self, turn: Turn, message: Message) -> Step:
        """Records a turn, and the environment's answer to it."""
        self.turns.append(turn)
        self.tail_ids = ()
        self.messages.append(message)
        began = time.perf_counter()
        with self.boundary("step"):
            step = check_step(await self.env.receive(turn))
        self._record(step, env_seconds=time.perf_counter() - began)
        return step

    def _record(self, step: Step, *, env_seconds: float = 0.0) -> None:
        """Pays the last turn, and keeps what the environment measured and wrote, and the time it took."""
        if self.turns:
            turn = self.turns[-1]
            added = {name: turn.rewards.get(name, 0.0) + value for name, value in step.rewards.items()}
            spent = turn.env_seconds + env_seconds
            self.turns[-1] = dataclasses.replace(turn, rewards={**turn.rewards, **added}, env_seconds=spent)
        self.metrics.update(step.metrics)
        self.messages += step.messages

    async def _make_room(self) -> StopReason | None:
        """Lets the environment rewrite a conversation that is full; why the episode ends, or None if it goes on."""
        with self.boundary("overflow"):
            returned = await self.env.overflow()
            step = None if returned is None else check_step(returned)
        if step is None:
            return StopReason.CONTEXT_FULL
        self._record(step)
        self.tail_ids = ()
        if step.done:
            return _why_done(step)
        await self.session.observe(step)
        return StopReason.CONTEXT_FULL if _is_full(self.session) else None


def _describe(local: Mapping[str, object]) -> str:
    """`step of task 'train-7'`, while the conversation is in a call of environment code."""
    talk = cast(_Conversation, local["self"])
    return f"{talk.boundary.where} of task '{talk.task.id}'" if talk.boundary.since is not None else ""


calls_foreign_code(_Conversation.run, _describe)


def _is_full(session: Session) -> bool:
    return session.room is not None and session.room < 1


def _why_done(step: Step) -> StopReason:
    return StopReason.TIME_UP if step.truncated else StopReason.DONE


def _make_turn(move: Move, state_key: str | None, seconds: float) -> Turn:
    if move.tokens is None:
        return Turn(state_key=state_key, message=move.message, seconds=seconds)
    completion = move.tokens.completion
    return Turn(
        context_ids=move.tokens.context_ids,
        action_ids=completion.ids,
        logprobs=completion.logprobs,
        version=completion.version,
        versions=completion.versions,
        opens_row=move.tokens.opens_row,
        finish=completion.finish,
        state_key=state_key,
        message=move.message,
        seconds=seconds,
    )


def _give_back(clock: asyncio.Timeout, seconds: float) -> None:
    if (when := clock.when()) is not None:
        clock.reschedule(when + seconds)
