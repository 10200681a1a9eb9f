"""One episode, from a task to a trajectory: the conversation of an environment and an engine.

Invariant: ids go into the trajectory as they were fed and sampled, never re-tokenised; and whatever happens, what was
sampled so far is in it, with the reason it stopped.
"""

import dataclasses
from dataclasses import dataclass, field

from turnwise.engines.base import Engine
from turnwise.envs.base import Env
from turnwise.ledger import Ledger
from turnwise.render.base import Render
from turnwise.rollout.boundary import boundary, conclude
from turnwise.rollout.limits import Decoding, Limits
from turnwise.seeds import derive_seed
from turnwise.types import Step, StopReason, Task, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Who plays, and by which rules: an engine, the renderer that speaks for it, decoding and limits."""

    engine: Engine
    render: Render
    limits: Limits = field(default_factory=Limits)
    decoding: Decoding = field(default_factory=Decoding)
    ledger: Ledger = field(default_factory=Ledger)
    """Where the time of its episodes is charged."""

    @property
    def context_limit(self) -> int:
        """The engine's own limit, or a lower one that the recipe set."""
        asked = self.limits.context_tokens
        return self.engine.context_limit if asked is None else min(asked, self.engine.context_limit)


@dataclass(slots=True, kw_only=True)
class _Record:
    """What has happened so far: it outlives whatever cuts the conversation off."""

    turns: list[Turn] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    tail_ids: tuple[int, ...] = ()
    """What the agent reads next, in the row it is in: known between a step and the next move, and empty otherwise."""


async def run_episode(player: Player, env: Env, task: Task, *, episode_seed: int, session: str) -> Trajectory:
    """Plays one episode on `env`, an instance spawned for it."""
    record = _Record()
    try:
        ending = await conclude(
            env,
            lambda clock: _converse(player, env, task, episode_seed, session, record),
            seconds=player.limits.seconds,
        )
    finally:
        await player.engine.end(session)
    return Trajectory(
        task=task,
        turns=tuple(record.turns),
        stop=ending.stop,
        episode_seed=episode_seed,
        metrics=record.metrics,
        seconds=ending.seconds,
        failure=ending.failure,
        tail_ids=record.tail_ids if ending.stop.truncated else (),
    )


async def _converse(
    player: Player, env: Env, task: Task, episode_seed: int, session: str, record: _Record
) -> StopReason:
    """Records turns until somebody ends the episode, and says who."""
    render, limits = player.render, player.limits
    with boundary("reset"):
        messages = await env.reset(task, episode_seed)
    with player.ledger.spend("render"):
        context, opens_row = render.start(messages, env.tools), True
    conversation = list(context)
    budget = limits.episode_tokens
    for number in range(limits.max_turns):
        room = player.context_limit - len(conversation)
        if room < 1:
            return StopReason.CONTEXT_FULL
        if budget is not None and budget < 1:
            return StopReason.TOKEN_BUDGET
        sampling = player.decoding.sampling(
            max_tokens=min(limits.turn_tokens, room, room if budget is None else budget),
            stop_ids=render.stop_ids,
            seed=derive_seed(episode_seed, "turn", number),
        )
        with boundary("state_key"):
            state_key = env.state_key()
        completion = await player.engine.generate(session, conversation, sampling)
        turn = Turn(
            context_ids=context,
            action_ids=completion.ids,
            logprobs=completion.logprobs,
            version=completion.version,
            opens_row=opens_row,
            finish=completion.finish,
            state_key=state_key,
        )
        record.turns.append(turn)
        record.tail_ids = ()
        with player.ledger.spend("render"):
            message = render.parse(completion.ids)
        with boundary("step"):
            step = await env.step(message)
        if step.rewards:
            record.turns[-1] = dataclasses.replace(turn, rewards=dict(step.rewards))
        record.metrics.update(step.metrics)
        if step.done and not step.truncated:
            return StopReason.DONE
        if budget is not None:
            budget -= len(completion.ids)
        with player.ledger.spend("render"):
            context, opens_row = _next_context(render, env, turn, step)
        if opens_row:
            conversation = list(context)
        else:
            conversation += turn.action_ids
            conversation += context
        if not opens_row and len(conversation) <= player.context_limit:
            record.tail_ids = context
        if step.done:
            return StopReason.TIME_UP
    return StopReason.MAX_TURNS


def _next_context(render: Render, env: Env, turn: Turn, step: Step) -> tuple[tuple[int, ...], bool]:
    """What the agent reads next, and whether that opens a new row."""
    if step.rewrites is not None:
        return render.start(step.rewrites, env.tools), True
    return render.extend(turn.action_ids, step.messages), False
