"""From a config to the parts that run: environment, model, renderer, engine.

Invariant: whatever a user can get wrong is found here, cheapest first, before any long work starts.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from turnwise.config import Config
from turnwise.engines.local.engine import LocalEngine
from turnwise.envs.base import Env
from turnwise.envs.registry import make_env
from turnwise.errors import EnvError, TurnwiseError
from turnwise.evaluation.evaluate import choose_fields
from turnwise.ledger import Ledger
from turnwise.models.loading import LoadedModel, load_model, require_context
from turnwise.render import ChatRender, format_message, make_render
from turnwise.rollout import Decoding, Player
from turnwise.types import Message, Task

_TEXT_SAMPLES = 400
"""Episodes whose text the built-in model's tokenizer is trained on."""
_TEXT_TURNS = 32
"""Turns of each that are listened to: an environment may leave it to the rollout's limits to end an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything an experiment works with; the learner is the trainer's own."""

    env: Env
    train_tasks: Sequence[Task]
    test_tasks: Sequence[Task]
    loaded: LoadedModel
    render: ChatRender
    engine: LocalEngine
    autocast: torch.dtype | None
    ledger: Ledger
    """Where the time of all of them is charged."""

    def player(self, config: Config, decoding: Decoding) -> Player:
        """Who plays: in training with the rollout's decoding, in evaluation with its own."""
        return Player(
            engine=self.engine, render=self.render, limits=config.rollout, decoding=decoding, ledger=self.ledger
        )


def assemble(
    config: Config, *, env: Env | None = None, tasks: Sequence[Task] | None = None, ledger: Ledger | None = None
) -> Parts:
    """Makes every part once. `env` and `tasks` stand in for what the config names, for those who have them at hand."""
    env = make_env(config.env) if env is None else env
    train_tasks = env.tasks("train") if tasks is None else tasks
    test_tasks = env.tasks(config.evaluate.split) if tasks is None else tasks
    _require_tasks(train_tasks, "train")
    _require_tasks(test_tasks, config.evaluate.split)
    choose_fields(test_tasks[: config.evaluate.tasks], config.evaluate.group_by)
    asyncio.run(_rehearse(env.spawn(), train_tasks[0]))
    loaded = load_model(config.model, seed=config.seed, texts=lambda: sample_texts(env, train_tasks))
    require_context(loaded.context_limit, config.rollout.context_tokens or config.rollout.turn_tokens)
    autocast = torch.bfloat16 if config.model.autocast else None
    ledger = ledger or Ledger()
    return Parts(
        env=env,
        train_tasks=train_tasks,
        test_tasks=test_tasks[: config.evaluate.tasks],
        loaded=loaded,
        render=make_render(loaded.tokenizer, config.render),
        engine=LocalEngine(
            loaded.model,
            settings=config.engine,
            context_limit=loaded.context_limit,
            autocast=autocast,
            ledger=ledger,
        ),
        autocast=autocast,
        ledger=ledger,
    )


def sample_texts(env: Env, tasks: Sequence[Task]) -> Iterator[str]:
    """What is said in some episodes, by the environment and, where there is one, its expert."""
    for spec in env.tools:
        arguments = ", ".join(spec.parameters.get("properties") or {})  # type: ignore[arg-type]  # an object's keys
        yield f"{spec.name}({arguments}): {spec.description}"
    for place, task in enumerate(tasks[:_TEXT_SAMPLES]):
        yield from asyncio.run(_conversation(env.spawn(), task, episode_seed=place))


async def _conversation(env: Env, task: Task, episode_seed: int) -> list[str]:
    try:
        messages = list(await env.reset(task, episode_seed))
        for _ in range(_TEXT_TURNS if type(env).expert is not Env.expert else 0):
            messages.append(env.expert())
            step = await env.step(messages[-1])
            messages += step.messages
            if step.done:
                break
    finally:
        await env.close()
    return [format_message(m) if m.role == "assistant" else m.content for m in messages]


async def _rehearse(env: Env, task: Task) -> None:
    """One move of one episode, before the model is loaded: a broken environment or reward shows itself here."""
    try:
        await env.reset(task, 0)
        await env.step(Message(role="assistant", content="Hello."))
        await env.close()
    except TurnwiseError:
        raise
    except Exception as error:
        raise EnvError(
            f"{type(env).__name__} failed in a rehearsal: {type(error).__name__}: {error}; `turnwise check` tells more"
        ) from error


def _require_tasks(tasks: Sequence[Task], split: str) -> None:
    if not len(tasks):
        raise EnvError(f"the split '{split}' has no tasks: give the environment some, or pass tasks=[...]")
    if not isinstance(tasks[0], Task):
        raise EnvError(f"tasks: {tasks[0]!r} is not a Task: write Task(id=..., data={{...}})")
