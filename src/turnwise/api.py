"""Training and evaluation from Python: what the command line does, with objects in place of names.

Invariant: a mistake in the arguments is found before anything heavy is imported, as on the command line.
"""

import asyncio
import concurrent
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import turnwise.errors
from turnwise.agents import Agent
from turnwise.algorithms import ALGORITHM
from turnwise.compute.process import configure_process
from turnwise.config import (
    Config,
    check_config,
    check_read,
    load_run_config,
    parse_config,
    read_run_config,
    resolve_recipe,
)
from turnwise.envs.base import Env
from turnwise.envs.mixture import Mixture
from turnwise.envs.registry import EnvSettings, MixtureSettings, describe_env
from turnwise.errors import ConfigError, RunInterrupted, TurnwiseError
from turnwise.plugins import StopLoading, is_loading, name_object
from turnwise.runs.directory import Resume, RunDirectory
from turnwise.settings import Layer, Recipe
from turnwise.types import Task

if TYPE_CHECKING:
    from turnwise.evaluation import Evaluation
    from turnwise.runs import Display
    from turnwise.training.callbacks import Callback

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
_NOT_THE_USERS = tuple(str(Path(module.__file__ or "").parent) for module in (turnwise.errors, asyncio, concurrent))


def _plain_errors(function: Callable[P, T]) -> Callable[P, T]:
    """A user's mistake as one exception, with the frames of the user's own code and without those of the package."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if is_loading():
            raise StopLoading  # the file is run for its classes: `turnwise eval` of a script that trains
        try:
            return function(*args, **kwargs)
        except TurnwiseError as error:
            raise error.with_traceback(_users_frames(error.__traceback__)) from None
        except RunInterrupted as interrupted:  # the process was asked to end: so it does, unless the program objects
            logger.warning("%s; continue with resume=True", interrupted)
            raise SystemExit(RunInterrupted.EXIT_CODE) from None

    return call


def _users_frames(traceback: TracebackType | None) -> TracebackType | None:
    frames = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


@_plain_errors
def train(
    *,
    config: Config | None = None,
    env: Env | str | None = None,
    model: str | Mapping[str, object] | None = None,
    tasks: Sequence[Task] | None = None,
    algorithm: str | None = None,
    steps: int | None = None,
    run: str | Path = "runs/train",
    resume: Resume = False,
    display: "Display | None" = None,
    callbacks: "Sequence[Callback | str | Mapping[str, object]]" = (),
    **sections: object,
) -> RunDirectory:
    """Trains an agent: `turnwise.train(model="Qwen/Qwen2.5-0.5B-Instruct", env=MyEnv(), algorithm="grpo")`.

    In a script under torchrun, the learner is spread over its processes; all return when the first has written the run.

    Args:
        config: The whole experiment as one value, in place of `model`, `algorithm`, `steps` and sections.
        env: An environment, or the name of one; beside a config, an environment that stands in for the one it names.
        model: `small`, a Hugging Face id, a folder, or a .gguf file; or that section of a recipe, as a mapping.
        tasks: Tasks to train and evaluate on, in place of the environment's own.
        algorithm: A name in `turnwise.algorithms.ALGORITHMS`: ppo, grpo (the default), rloo, gigpo and others.
        steps: Training steps (default: 100).
        run: The folder of the run.
        resume: Go on from the run's last checkpoint; "auto" also starts a run where there is none.
        display: Where progress is shown; the terminal by default.
        callbacks: Observers of the run, as objects or as a recipe names them: `[MyTracker(), "wandb"]`.
        sections: Further sections of a recipe: `rollout={"group_size": 16}`, `learner={"optimizer": {"lr": 1e-5}}`. A
            plug-in may be the object itself: `credit={"estimator": my_estimator}`.
    """
    if steps is not None:
        sections["steps"] = steps
    named = [one for one in callbacks if isinstance(one, str | Mapping)]
    if named:
        sections["callbacks"] = named
    config = _resolve("turnwise.train(...)", config, env, model, algorithm, sections)
    configure_process()
    from turnwise.training.launch import launch
    from turnwise.training.trainer import run_training

    trained = launch(
        lambda learners: run_training(
            config,
            run,
            resume=resume,
            env=_env_at_hand(env),
            tasks=tasks,
            display=display,
            callbacks=[one for one in callbacks if not isinstance(one, str | Mapping)],
            learners=learners,
        ),
        config,
    )
    return trained or RunDirectory(Path(run))  # a process that followed did not write it


@_plain_errors
def evaluate(
    *,
    run: str | Path | None = None,
    config: Config | None = None,
    env: Env | str | None = None,
    model: str | Mapping[str, object] | None = None,
    agent: Agent | None = None,
    tasks: Sequence[Task] | None = None,
    display: "Display | None" = None,
    trust: bool = False,
    **sections: object,
) -> "Evaluation":
    """Evaluates an agent: `turnwise.evaluate(run="runs/train")`, or a model: `evaluate(model="small", env=MyEnv())`.

    Args:
        run: The folder of a run: its newest checkpoint is evaluated as its config says.
        config: The whole experiment as one value, in place of `model` and sections.
        env: An environment, or the name of one; beside a run or a config, one that stands in for the one it names.
        model: `small`, a Hugging Face id, a folder, or a .gguf file; or that section of a recipe, as a mapping.
        agent: Who plays in place of a model: a model behind an API, an expert, a script.
        tasks: Tasks to evaluate on, in place of the environment's own.
        display: Where progress is shown; the terminal by default.
        trust: Run the Python that the run's config names though its file is not the one the run was made with.
        sections: Further sections of a recipe: `evaluate={"tasks": 500, "temperature": 1.0}`.
    """
    caller = "turnwise.evaluate(...)"
    if run is not None:
        _refuse_both(caller, "run", {"config": config, "model": model, **sections})
        load = load_run_config if agent is None else read_run_config
        config = _with_env(load(Path(run), [f"env={env}"] if isinstance(env, str) else [], trust=trust), env)
    else:
        if agent is not None and config is None:
            model = model or {}  # it is not loaded
        config = _resolve(caller, config, env, model, None, sections)
    configure_process()
    from turnwise.training.evaluate import run_evaluation

    return run_evaluation(config, display, agent=agent, env=_env_at_hand(env), tasks=tasks)


def _resolve(
    caller: str,
    config: Config | None,
    env: Env | str | None,
    model: str | Mapping[str, object] | None,
    algorithm: str | None,
    sections: Mapping[str, object],
) -> Config:
    """The experiment that the keywords mean, or the config that was given in their place."""
    if env is not None and not isinstance(env, Env | str):
        raise ConfigError(f"env: {env!r} is neither an environment nor the name of one; if it is a class, call it")
    if config is not None:
        _refuse_both(caller, "config", {"model": model, "algorithm": algorithm, **sections})
        config = check_config(config)
        check_read(config)
        return _with_env(config, env)
    if env is None:
        raise ConfigError(f"{caller}: give an environment: env=MyEnv(), or a name such as env='encyclopedia'")
    if model is None:
        raise ConfigError(f"{caller}: give a model: model='small' for the built-in one, a folder, or a Hugging Face id")
    given = {
        "env": _describe(env).model_dump(mode="json", exclude_unset=True),
        "model": model,
        ALGORITHM: algorithm or "grpo",
        **sections,
    }
    return parse_config(resolve_recipe(Recipe([Layer(caller, _name_objects(given))])), caller)


def _refuse_both(caller: str, whole: str, given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{caller}: {name} is part of the {whole}: give one of the two")


def _with_env(config: Config, env: Env | str | None) -> Config:
    return config if env is None else config.model_copy(update={"env": _describe(env)})


def _describe(env: Env | str) -> EnvSettings | MixtureSettings:
    """An environment by name; what it was made with is recorded where the run begins."""
    if isinstance(env, Mixture):
        return describe_env(env)
    return EnvSettings(name=env if isinstance(env, str) else name_object(type(env)))


def _env_at_hand(env: Env | str | None) -> Env | None:
    """The environment at hand; None leaves it to the config, which names it."""
    return env if isinstance(env, Env) else None


def _name_objects(section: Mapping[str, object]) -> dict[str, object]:
    """Plain data, with functions and classes as the names that `find_plugin` knows them by."""
    return {key: _name_object(value) for key, value in section.items()}


def _name_object(value: object) -> object:
    if isinstance(value, Mapping):
        return _name_objects(value)
    if isinstance(value, list | tuple):
        return [_name_object(one) for one in value]
    return name_object(value) if callable(value) else value
