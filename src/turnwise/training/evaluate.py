"""From a config and an agent to an evaluation: `turnwise.evaluate` and `turnwise eval`.

Invariant: what cannot work, an unwritable file included, is an error before the first episode is played.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from turnwise.agents import Agent
from turnwise.config import Config
from turnwise.envs.base import Env
from turnwise.errors import RunError
from turnwise.evaluation.evaluate import Evaluation, evaluate
from turnwise.evaluation.report import write_answers
from turnwise.runs import Display, make_display, write_trajectories
from turnwise.runs.store import Decode
from turnwise.training.build import assemble, choose_env, evaluation_tasks, refuse_own_tasks
from turnwise.training.memory import TO_SAMPLE, one_line_out_of_memory
from turnwise.types import Task

_logger = logging.getLogger(__name__)


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
    if tasks is not None:  # these are what is asked for
        config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"hold_out": 0})})
    decode: Decode | None = None
    if agent is None:
        components = assemble(config, env=env, tasks=tasks)
        agent, env, tasks = components.policy(config.evaluate), components.env, components.test_tasks
        decode = components.render.decode
    else:
        env = choose_env(config, env)
        refuse_own_tasks(env, tasks)
        tasks = evaluation_tasks(env, config, tasks)
    with make_display() if display is None else nullcontext(display) as shown, one_line_out_of_memory(TO_SAMPLE):
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


def _require_writable(file: str | None) -> None:
    if file is None:
        return
    path = Path(file).absolute()
    if path.is_dir() or not path.parent.is_dir():
        reason = "a folder, not a file" if path.is_dir() else f"there is no folder {path.parent}"
        raise RunError(f"{file}: cannot be written: {reason}")
