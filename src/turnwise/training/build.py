"""From a config to the components of a run: environment, model, renderer, engine.

Invariant: users' mistakes are found here, cheapest first, before any long work starts.
"""

import asyncio
import copy
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from turnwise.agents import Agent, Decoding, ExpertAgent, PolicyAgent, ScriptedAgent
from turnwise.cluster.engine import ClusterEngine
from turnwise.config import Config
from turnwise.engines import Engine, make_engine, require_engine
from turnwise.envs.base import Env
from turnwise.envs.mixture import Mixture, first_tasks, members_of
from turnwise.envs.registry import EnvSettings, describe_env
from turnwise.envs.workers.placing import OpenNursery, place_env
from turnwise.errors import EnvError
from turnwise.evaluation.evaluate import choose_fields
from turnwise.ledger import Ledger
from turnwise.models.loading import LoadedModel, choose_autocast, load_model, require_context
from turnwise.render import Render, format_message, make_render
from turnwise.rollout import Limits, report_failures, run_episode
from turnwise.rollout.fleet import Fleet
from turnwise.training.hold_out import HeldOut, hold_out
from turnwise.training.memory import TO_LOAD, one_line_out_of_memory
from turnwise.types import Message, Task

_logger = logging.getLogger(__name__)
_SMOKE_TASKS = 3
"""Tasks that are tried before an environment counts as broken: a single bad one is a failure like any other."""
_TEXT_SAMPLES = 400
"""Episodes whose text the built-in model's tokenizer is trained on."""
_TEXT_TURNS = 32
"""Turns of each that are sampled: an environment may leave it to the rollout's limits to end an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Everything a run works with but the learner, which the trainer makes."""

    env: Env
    train_tasks: Sequence[Task]
    test_tasks: Sequence[Task]
    held_out: HeldOut
    """Of the training tasks; none unless `evaluate.hold_out` asks for some."""
    loaded: LoadedModel
    render: Render
    engine: Engine
    autocast: torch.dtype | None
    ledger: Ledger
    """Where all of them charge their time."""
    prompt_ids: tuple[int, ...] = ()
    """What an agent reads first in one of the tasks."""
    fleet: Fleet | None = None
    """Rollout workers of a cluster; None: episodes are played in this process."""

    def policy(self, decoding: Decoding) -> PolicyAgent:
        """The model as an agent: in training with the rollout's decoding, in evaluation with its own."""
        return PolicyAgent(engine=self.engine, render=self.render, decoding=decoding, ledger=self.ledger)


def assemble(
    config: Config,
    *,
    env: Env | None = None,
    tasks: Sequence[Task] | None = None,
    ledger: Ledger | None = None,
    on_cluster: bool = False,
    open_nursery: OpenNursery | None = None,
) -> Components:
    """Makes every component once; `env` and `tasks` replace those that the config names.

    With `on_cluster`, rollout workers elsewhere will sample, and there is no engine here. `open_nursery` starts
    environment workers on other nodes, where the config asks for them.
    """
    if not on_cluster:
        require_engine(config.engine)
    # Where others play, this process tries the environment out, which one worker is enough for, and demonstrates.
    few = 1 if on_cluster and config.sft is None else None
    env = place_env(config.env, env, open_nursery=open_nursery, workers_elsewhere=few)
    refuse_own_tasks(env, tasks)
    _refuse_compaction(env, config)
    train_tasks = training_tasks(env, tasks)
    held_out = hold_out(env, train_tasks, config.evaluate.hold_out)
    test_tasks = choose_tasks(env, config, tasks, held_out)
    train_tasks = held_out.leave_out(train_tasks)
    tested = [asyncio.run(smoke_test_env(one, own[:_SMOKE_TASKS])) for one, own in members_of(env, train_tasks)]
    opening = tested[0]
    with one_line_out_of_memory(TO_LOAD):
        loaded = load_model(config.model, seed=config.seed, texts=lambda: sample_texts(env, train_tasks))
    for limits in (config.rollout, *(env.entries.values() if isinstance(env, Mixture) else ())):
        require_context(loaded.context_limit, limits.context_tokens or limits.turn_tokens or 1)
    autocast = None if _offloads_layers(config) else choose_autocast(config.model, loaded)
    ledger = ledger or Ledger()
    render = make_render(loaded.tokenizer, config.render)
    prompt_ids = render.start(opening, env.tools) if opening else ()
    _warn_of_long_prompt(len(prompt_ids), config, loaded.context_limit)
    engine = None if on_cluster else _make_engine(config, loaded, autocast, ledger=ledger, prompt_ids=prompt_ids)
    return Components(
        env=env,
        train_tasks=train_tasks,
        test_tasks=test_tasks,
        held_out=held_out,
        loaded=loaded,
        render=render,
        engine=engine or ClusterEngine(loaded.context_limit),
        autocast=autocast,
        ledger=ledger,
        prompt_ids=prompt_ids,
    )


def _make_engine(
    config: Config, loaded: LoadedModel, autocast: torch.dtype | None, *, ledger: Ledger, prompt_ids: Sequence[int]
) -> Engine:
    with one_line_out_of_memory(TO_LOAD):
        return make_engine(
            config.engine,
            _sampled_model(config, loaded),
            context_limit=loaded.context_limit,
            autocast=autocast,
            ledger=ledger,
            prompt_ids=prompt_ids,
        )


def _offloads_layers(config: Config) -> bool:
    """Whether layers' rounded weights would be moved with what they save: refused where autocast is asked for."""
    return config.learner.activation_offload and not config.learner.checkpointing


def _warn_of_long_prompt(tokens: int, config: Config, context_limit: int) -> None:
    room = min(context_limit, config.rollout.context_tokens or context_limit)
    if tokens >= room:
        _logger.warning(
            "the first task's prompt has %d tokens, and the context %d: its episodes end before their first turn; "
            "raise rollout.context_tokens as far as the model allows, or shorten prompts",
            tokens,
            room,
        )


def _sampled_model(config: Config, loaded: LoadedModel) -> PreTrainedModel:
    """The learner's own model, or a copy of it where episodes go on while the learner changes its own."""
    return copy.deepcopy(loaded.model) if config.rollout.staleness and config.engine.kind == "local" else loaded.model


def choose_env(config: Config, env: Env | None) -> Env:
    """The environment at hand, or else the one that the config names, in as many workers as the config says."""
    return place_env(config.env, env)


def record_env(config: Config, env: Env) -> Config:
    """The config with an environment that was made in Python, as a recipe would name it."""
    described, given = describe_env(env), config.env
    if isinstance(given, EnvSettings):
        kept = {name: getattr(given, name) for name in ("workers_on", "max_deaths", "chaos")}
        described = described.model_copy(update=kept | {"workers": env.host.workers or given.workers})
    return config.model_copy(update={"env": described})


def evaluation_tasks(env: Env, config: Config, tasks: Sequence[Task] | None) -> Sequence[Task]:
    """Those held out of training, or the first of the split or of `tasks`."""
    count = config.evaluate.hold_out
    held_out = hold_out(env, training_tasks(env, tasks), count) if count else HeldOut()
    return choose_tasks(env, config, tasks, held_out)


def training_tasks(env: Env, tasks: Sequence[Task] | None) -> Sequence[Task]:
    """The environment's own, or those given; there must be some."""
    train = env.tasks("train") if tasks is None else tasks
    _require_tasks(train, "train")
    return train


def choose_tasks(env: Env, config: Config, tasks: Sequence[Task] | None, held_out: HeldOut) -> Sequence[Task]:
    """Those held out, where there are some, or the first of the split; in a mixture, those of each environment."""
    settings = config.evaluate
    chosen = held_out.tasks
    if not chosen:
        chosen = env.tasks(settings.split) if tasks is None else tasks
        _require_tasks(chosen, settings.split)
        chosen = first_tasks(chosen, settings.tasks)
    choose_fields(chosen, settings.group_by)
    return chosen


def refuse_own_tasks(env: Env, tasks: Sequence[Task] | None) -> None:
    """Tasks that come beside a mixture belong to none of its environments."""
    if isinstance(env, Mixture) and tasks is not None:
        raise EnvError("tasks: a mixture plays the tasks of its environments: give them there (env.mixture.NAME.tasks)")


def _refuse_compaction(env: Env, config: Config) -> None:
    """A program decides itself what the model reads, so there is nothing to compact here."""
    members = env.entries.values() if isinstance(env, Mixture) else ()
    if config.rollout.compaction is not None and all(
        one.keeps_conversation for one in [m.env for m in members] or [env]
    ):
        raise EnvError(
            f"rollout.compaction: {type(env).__name__} keeps its own conversation: compact it in the program"
        )


def sample_texts(env: Env, tasks: Sequence[Task]) -> Iterator[str]:
    """The text of some episodes: the environment's, and its expert's where it has one; of a mixture, of each."""
    members = list(members_of(env, tasks))
    for one, own in members:
        yield from _sample_texts(one, own[: -(-_TEXT_SAMPLES // len(members))])


def _sample_texts(env: Env, tasks: Sequence[Task]) -> Iterator[str]:
    for spec in env.tools:
        arguments = ", ".join(spec.parameters.get("properties") or {})  # type: ignore[arg-type]  # an object's keys
        yield f"{spec.name}({arguments}): {spec.description}"
    agent: Agent = ExpertAgent() if env.has_expert else ScriptedAgent()
    limits = Limits(max_turns=_TEXT_TURNS)
    played = []
    for place, task in enumerate(tasks):
        episode = asyncio.run(run_episode(agent, env.spawn_for(task), task, episode_seed=place, limits=limits))
        played.append(episode)
        yield from (format_message(m) if m.role == "assistant" else m.content for m in episode.messages)
    report_failures(played, "sampled episode")


async def smoke_test_env(env: Env, tasks: Sequence[Task]) -> tuple[Message, ...]:
    """One move of an episode, before the model is loaded, finds an environment or reward that is broken.

    Returns what the agent read before it.
    """
    hello = ScriptedAgent(replies=["Hello."])
    failures = []
    for task in tasks:
        episode = await run_episode(hello, env.spawn_for(task), task, episode_seed=0, limits=Limits(max_turns=1))
        if not episode.failure:
            return tuple(itertools.takewhile(lambda message: message.role != "assistant", episode.messages))
        failures.append(episode.failure)
    raise EnvError(f"{type(env).__name__} failed its smoke test, {failures[0]}; `turnwise check` tells more")


def _require_tasks(tasks: Sequence[Task], split: str) -> None:
    if not len(tasks):
        raise EnvError(f"the split '{split}' has no tasks: give the environment some, or pass tasks=[...]")
    if not isinstance(tasks[0], Task):
        raise EnvError(f"tasks: {tasks[0]!r} is not a Task: write Task(id=..., data={{...}})")
