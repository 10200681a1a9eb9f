"""From a config and an agent to an evaluation: `turnwise.evaluate` and `turnwise eval`.

Invariant: what cannot work, an unwritable file included, is an error before the first episode is played.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from turnwise.agents import Agent, EndpointSettings
from turnwise.config import Config, load_config, load_run_config
from turnwise.envs.base import Env
from turnwise.envs.registry import make_env
from turnwise.errors import ConfigError, RunError
from turnwise.evaluation.evaluate import Evaluation, evaluate
from turnwise.evaluation.report import write_answers
from turnwise.recipes import find_recipe
from turnwise.runs import Display, RunDirectory, make_display, write_trajectories
from turnwise.runs.store import Decode
from turnwise.settings import parse_settings
from turnwise.training.build import assemble, held_out_tasks
from turnwise.types import Task

_logger = logging.getLogger(__name__)


def load_target(what: str, overrides: Sequence[str] = (), *, model: str | None = None, local: bool = True) -> Config:
    """The config to evaluate by, with the model of a run, of one of its checkpoints, or the one that `model` names.

    Without `local`, another agent plays than the run's model, and the run needs no checkpoint.
    """
    path = Path(what)
    if path.is_dir():
        run, checkpoint = _find_run(path)
        if checkpoint is None and model is None and local:
            return load_run_config(run, overrides)
        config = load_config(RunDirectory.open(run).config, overrides)
        model = model or (str(checkpoint) if checkpoint else None)
    elif not find_recipe(what).is_file() and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{what}: neither a run nor a recipe; to evaluate a model, name the recipe of its task as well: "
            f"turnwise eval RECIPE --model {what}"
        )
    else:
        config = load_config(what, overrides)
    return config if model is None else _with_model(config, model)


def read_endpoint(
    url: str | None, model: str | None, *, key_env: str | None = None, settings: Sequence[str] = ()
) -> EndpointSettings | None:
    """The endpoint that the command line names, or None; `settings` are such as `timeout=300`."""
    if url is None:
        if model or key_env or settings:
            raise ConfigError("--api-model, --key-env and --api are about an endpoint: name it by --endpoint URL")
        return None
    if model is None:
        raise ConfigError("--endpoint: say which of its models plays: --api-model NAME")
    data = {"url": url, "model": model} | ({"key_env": key_env} if key_env else {})
    return parse_settings(EndpointSettings, data, overrides=settings, source="--endpoint")


def run_evaluation(
    config: Config,
    display: Display | None = None,
    *,
    agent: Agent | None = None,
    env: Env | None = None,
    tasks: Sequence[Task] | None = None,
    save: str | None = None,
    answers: str | None = None,
) -> Evaluation:
    """Evaluates the config's model, or `agent` in its place, and writes the files asked for.

    `env` and `tasks` replace those that the config names. `save` names a Parquet file of the trajectories, `answers` a
    file of JSON lines, one per task.
    """
    for file in (save, answers):
        _require_writable(file)
    decode: Decode | None = None
    if agent is None:
        components = assemble(config, env=env, tasks=tasks)
        agent, env, tasks = components.policy(config.evaluate), components.env, components.test_tasks
        decode = components.render.decode
    else:
        env = make_env(config.env) if env is None else env
        tasks = held_out_tasks(env, config, tasks)
    with make_display() if display is None else nullcontext(display) as shown:
        result = _play(agent, env, tasks, config, shown)
    if save:
        write_trajectories(Path(save), 0, result.groups, None, decode)
    if answers:
        write_answers(Path(answers), result)
    return result


def _play(agent: Agent, env: Env, tasks: Sequence[Task], config: Config, display: Display) -> Evaluation:
    if config.evaluate.samples_per_task > 1 and config.evaluate.temperature == 0:
        _logger.warning("evaluate.temperature is 0: samples differ by episode seed alone; raise it for pass@k")
    display.stage("evaluation", 0)
    return asyncio.run(
        evaluate(
            agent,
            env,
            tasks,
            limits=config.rollout,
            samples_per_task=config.evaluate.samples_per_task,
            seed=config.seed,
            group_by=config.evaluate.group_by,
            progress=lambda done, total: display.progress(done, total, "episodes"),
        )
    )


def _find_run(folder: Path) -> tuple[Path, Path | None]:
    """The run that a folder is, or the run and the model where it is a checkpoint of one."""
    if (folder / "config.yaml").is_file():
        return folder, None
    checkpoint = folder.absolute().parent if folder.name == "model" else folder.absolute()
    run = checkpoint.parent.parent
    if checkpoint.parent.name == "checkpoints" and (run / "config.yaml").is_file():
        return run, checkpoint / "model"
    if (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder}: a model, not a run; name the recipe of its task: turnwise eval RECIPE --model {folder}"
        )
    return folder, None


def _with_model(config: Config, name: str) -> Config:
    inner = Path(name) / "model"
    chosen = str(inner) if inner.is_dir() else name
    model = config.model.model_copy(update={"name": chosen, "tokenizer": None, "lora": None})
    return config.model_copy(update={"model": model})


def _require_writable(file: str | None) -> None:
    if file is None:
        return
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        reason = "a folder, not a file" if path.is_dir() else f"there is no folder {path.parent}"
        raise RunError(f"{file}: cannot be written: {reason}")
