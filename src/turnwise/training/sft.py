"""Supervised fine-tuning on demonstrations, the cold start before reinforcement learning.

Invariant: a demonstration is a trajectory like any other. The expert plays in the same loop, and its messages become
actions where a model would have sampled them, so the same masks hold.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from turnwise.agents import DemonstratingExpert
from turnwise.envs.base import Env
from turnwise.envs.mixture import MixedTasks, Mixture
from turnwise.errors import ConfigError
from turnwise.learner.batch import Batch
from turnwise.learner.group import LearnerGroup
from turnwise.learner.settings import SFTSettings
from turnwise.render.base import Render
from turnwise.rollout import Limits, Shuffled, report_failures, run_episode
from turnwise.rollout.limits import limits_for
from turnwise.rollout.mixture_sampler import share_out
from turnwise.seeds import derive_seed
from turnwise.training.checkpoint_files import CheckpointState
from turnwise.training.forked import map_forked
from turnwise.types import Finish, Group, Message, StopReason, Task, ToolCall, ToolSpec, Trajectory, Turn

_logger = logging.getLogger(__name__)

_PER_WORKER = 8
"""Demonstrations under way at once for each of the environment's workers."""


def draw_demonstrated(env: Env, tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """The tasks that the expert plays; in a mixture, each environment's own number, or its share of `count`."""
    if not isinstance(env, Mixture) or not isinstance(tasks, MixedTasks):
        return Shuffled(tasks, per_step=count, seed=seed).draw(0)
    own = {name: entry.demonstrations for name, entry in env.entries.items()}
    left = count - sum(number or 0 for number in own.values())
    weights = {name: env.entries[name].weight for name, number in own.items() if number is None}
    if weights and left < 1:
        raise ConfigError(
            f"sft.demonstrations: {count} leaves none for {' and '.join(weights)} beside the numbers that "
            "env.mixture gives others: raise it"
        )
    shares = share_out(left, weights) if weights else {}
    drawn: list[Task] = []
    for name, number in own.items():
        wanted = shares[name] if number is None else number
        if wanted:
            drawn += Shuffled(tasks.parts[name], per_step=wanted, seed=derive_seed(seed, name)).draw(0)
    return drawn


async def play_expert(
    env: Env,
    tasks: Sequence[Task],
    *,
    render: Render,
    limits: Limits,
    context_limit: int,
    seed: int,
    workers: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Trajectory]:
    """One demonstration per task by the environment's own expert, in forked processes where there are `workers`."""
    expert = DemonstratingExpert(render=render, context_limit=context_limit)

    async def play(place: int) -> Trajectory:
        episode_seed = derive_seed(seed, "expert", place)
        task = tasks[place]
        own = limits_for(env, task, limits)
        return await run_episode(expert, env.spawn_for(task), task, episode_seed=episode_seed, limits=own)

    async def play_all(places: range) -> list[Trajectory]:
        return [await play(place) for place in places]

    if workers:
        played = map_forked(
            lambda places: asyncio.run(play_all(places)),
            len(tasks),
            workers=workers,
            setting="sft.workers",
            progress=progress,
        )
    else:
        played = await _play_in_turn(
            play, len(tasks), at_once=max(1, _PER_WORKER * env.host.workers), progress=progress
        )
    report_failures(played, "demonstration")
    _report_cuts(played)
    return played


async def _play_in_turn(
    play: Callable[[int], Awaitable[Trajectory]], count: int, *, at_once: int, progress: Callable[[int, int], None]
) -> list[Trajectory]:
    """The demonstrations by place, of which as many are under way `at_once`."""
    waiting, played = iter(range(count)), dict[int, Trajectory]()

    async def play_next() -> None:
        for place in waiting:
            played[place] = await play(place)
            progress(len(played), count)

    await asyncio.gather(*(play_next() for _ in range(min(at_once, count))))
    return [played[place] for place in range(count)]


def _report_cuts(demonstrations: Sequence[Trajectory]) -> None:
    """Logs how many demonstrations have a turn that lacks its end: a model learns to write half of a call by them."""
    cut = sum(any(turn.finish is Finish.LENGTH for turn in one.turns) for one in demonstrations)
    if cut:
        message = "%d of %d demonstrations have a turn that rollout.turn_tokens or a token limit cuts off: raise it"
        _logger.warning(message, cut, len(demonstrations))


def read_chats(path: str, render: Render) -> list[Trajectory]:
    """The chats of a JSONL file as trajectories: an assistant's messages are actions, all else is context."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"sft.chats: no file {path}: give a JSONL file of chats, or null for the expert")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"sft.chats: {path} is not UTF-8 text: save it as JSONL in UTF-8") from None
    trajectories = []
    # Not splitlines(): JSON may hold U+2028 and its like as they are, and only a newline ends a line of JSONL.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            messages, tools = _read_chat(line, f"{path}:{number}")
            trajectories.append(_from_chat(messages, tools, render, f"{file.stem}-{number}"))
    if not trajectories:
        raise ConfigError(f"sft.chats: {path} holds no chat")
    return trajectories


def run_sft(
    learners: LearnerGroup,
    demonstrations: Sequence[Trajectory],
    settings: SFTSettings,
    *,
    seed: int,
    done: int = 0,
    saved: CheckpointState | None = None,
    pause: Callable[[int], None] | None = None,
    pauses: Callable[[int], bool] = lambda step: False,
) -> Iterator[dict[str, float]]:
    """Trains the model in place, one optimizer step per value: `{"sft/loss": 1.7, "sft/grad_norm": .4, ...}`.

    It goes on after the first `done` steps from what was `saved` of them. After each step that `pauses` chooses,
    `pause(step)` is called while no step is under way: the moment to save.
    """
    steps = count_sft_steps(len(demonstrations), settings)
    sections, shards = (None, None) if saved is None else (saved.sections("sft"), saved.shards)
    learners.begin_sft(settings, total_steps=steps, seed=seed, saved=sections, shards=shards)
    order = Shuffled(demonstrations, per_step=settings.batch, seed=derive_seed(seed, "imitation"))
    tokens: deque[float] = deque()  # of the steps under way
    for step in range(done, steps):
        groups = [Group(task=one.task, trajectories=(one,)) for one in order.draw(step)]
        batch = Batch.of(groups, action_mask=settings.context_weight == 0)
        tokens.append(float(len(batch.ids)))
        for metrics in learners.sft_step(batch, step=step):
            yield metrics | {"sft/tokens": tokens.popleft()}
        if pause is not None and pauses(step + 1):
            for metrics in learners.finish_sft():
                yield metrics | {"sft/tokens": tokens.popleft()}
            pause(step + 1)
    for metrics in learners.finish_sft():
        yield metrics | {"sft/tokens": tokens.popleft()}


def count_sft_steps(demonstrations: int, settings: SFTSettings) -> int:
    """How many optimizer steps SFT takes; the last one may wrap around to the first demonstrations."""
    return -(-demonstrations * settings.epochs // settings.batch)


def _from_chat(messages: Sequence[Message], tools: Sequence[ToolSpec], render: Render, name: str) -> Trajectory:
    replies = [place for place, message in enumerate(messages) if message.role == "assistant"]
    turns: list[Turn] = []
    for number, place in enumerate(replies):
        before = messages[replies[number - 1] + 1 if turns else 0 : place]
        context = render.extend(turns[-1].action_ids, before) if turns else render.start(before, tools)
        action = render.encode_action(render.write(messages[place]))
        turns.append(Turn(context_ids=context, action_ids=action, logprobs=(0.0,) * len(action), opens_row=number == 0))
    return Trajectory(task=Task(id=name), turns=tuple(turns), stop=StopReason.DONE)


def _read_chat(line: str, where: str) -> tuple[list[Message], list[ToolSpec]]:
    try:
        chat = json.loads(line)
        tools = [ToolSpec(**tool.get("function", tool)) for tool in chat.get("tools") or []]
        messages = [_read_message(message) for message in chat["messages"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shape = '{"messages": [{"role": ..., "content": ...}]}'
        raise ConfigError(f"{where}: not a chat ({type(error).__name__}: {error}): write {shape}") from None
    if not messages or messages[0].role == "assistant" or all(message.role != "assistant" for message in messages):
        raise ConfigError(f"{where}: a chat must open with a user or system message and have an assistant's reply")
    return messages, tools


def _read_message(data: dict[str, object]) -> Message:
    """OpenAI's shape; arguments may be JSON text or an object."""
    calls = []
    for place, call in enumerate(data.get("tool_calls") or []):  # type: ignore[var-annotated, arg-type]  # plain JSON
        function = call.get("function", call)
        given = function["arguments"]
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        calls.append(ToolCall(id=str(call.get("id", f"call_{place}")), name=str(function["name"]), arguments=arguments))
    role = data["role"]
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"role {role!r} is none of system, user, assistant, tool")
    content = data.get("content") or ""
    if not isinstance(content, str):
        raise TypeError(f"content is text or null, not {type(content).__name__}")
    return Message(
        role=role,
        content=content,
        thinking=str(data.get("reasoning_content") or ""),
        tool_calls=tuple(calls),
        tool_call_id=str(data["tool_call_id"]) if data.get("tool_call_id") else None,
        name=str(data["name"]) if data.get("name") else None,
    )
