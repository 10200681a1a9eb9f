"""Training from Python: what the command line does, with objects in place of files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise.compute.process import configure_process
from turnwise.config import ALGORITHMS, Config, check_config
from turnwise.envs.base import Env
from turnwise.errors import ConfigError
from turnwise.runs import Display, RunDirectory
from turnwise.settings import parse_settings
from turnwise.spelling import suggest
from turnwise.training.trainer import run_training
from turnwise.types import Task


def train(
    *,
    env: Env | str,
    model: str | Mapping[str, object] = "small",
    tasks: Sequence[Task] | None = None,
    algorithm: str = "grpo",
    steps: int = 100,
    run: str | Path = "runs/train",
    resume: bool = False,
    display: Display | None = None,
    **sections: object,
) -> RunDirectory:
    """Trains an agent: `turnwise.train(model="Qwen/Qwen2.5-0.5B-Instruct", env=MyEnv(), algorithm="grpo")`.

    Args:
        env: An environment, or the name of one.
        model: `small`, a Hugging Face id, a folder, or a .gguf file; or that section of a recipe, as a mapping.
        tasks: Tasks to train and evaluate on, in place of the environment's own.
        algorithm: A name in `turnwise.config.ALGORITHMS`: ppo, grpo, rloo, gigpo, dr-grpo, reinforce++ and others.
        steps: Training steps.
        run: The folder of the run.
        resume: Go on from the run's last checkpoint.
        display: Where progress is shown; the terminal by default.
        sections: Further sections of a recipe: `rollout={"group_size": 16}`, `learner={"optimizer": {"lr": 1e-5}}`.
    """
    configure_process()
    if algorithm not in ALGORITHMS:
        raise ConfigError(
            f"algorithm: '{algorithm}' is unknown{suggest(algorithm, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}"
        )
    if not isinstance(env, Env | str):
        raise ConfigError(f"env: {env!r} is neither an environment nor the name of one; if it is a class, call it")
    named = env if isinstance(env, str) else f"{type(env).__module__}:{type(env).__qualname__}"
    section = {"name": model} if isinstance(model, str) else model
    data: dict[str, object] = {"env": {"name": named}, "model": section, "steps": steps}
    for source in (ALGORITHMS[algorithm], sections):
        for name, values in source.items():
            base = data.get(name)
            merged = isinstance(base, Mapping) and isinstance(values, Mapping)
            data[name] = {**base, **values} if merged else values  # type: ignore[dict-item]  # both are mappings
    config = check_config(parse_settings(Config, data, source="turnwise.train(...)"))
    return run_training(
        config, run, resume=resume, env=None if isinstance(env, str) else env, tasks=tasks, display=display
    )
