"""What a job that evaluates a row does: which model it takes, and how tasks are played and kept.

Invariant: a result's section names who succeeded, task by task in the split's order, so that rows are compared within
tasks; and the trajectories of a section are in a file of its name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.jobs import JobFolders
from turnwise.config import Config, check_config, load_run_config
from turnwise.envs import Env
from turnwise.evaluation import evaluate
from turnwise.runs import write_trajectories
from turnwise.seeds import derive_seed
from turnwise.settings import parse_settings
from turnwise.training.build import Components
from turnwise.types import Group, Json, StopReason, Task

DECODINGS: Mapping[str, float] = {"greedy": 0.0, "sampled": 1.0}
"""By temperature. After a cold start on mostly lazy demonstrations, the likeliest strategy is the lazy one, so greedy
episodes show nothing of the others."""


def read_config(settings: Mapping[str, Json], folders: JobFolders) -> Config:
    """The job's config, with the final model of the job before it; where there is none, with its own."""
    data = settings["config"]
    assert isinstance(data, Mapping)
    config = check_config(parse_settings(Config, data, source=folders.own.name))
    if folders.before is None:
        return config
    return config.model_copy(update={"model": load_run_config(folders.before / "run").model})


def leave_to_evaluation(config: Config, *, tasks: int, samples: int = 1) -> Config:
    """The config of a job that evaluates so many tasks once, and neither demonstrates nor trains."""
    asked = config.evaluate.model_copy(update={"tasks": tasks, "every": 0, "samples_per_task": samples})
    return config.model_copy(update={"evaluate": asked, "steps": 0, "sft": None})


async def evaluate_section(
    config: Config, parts: Components, env: Env, tasks: Sequence[Task], folder: Path, *, name: str, temperature: float
) -> dict[str, Json]:
    """One section of a result: `{"evaluate/success": .99, ..., "answers": [1.0, ...]}`."""
    found = await evaluate(
        parts.policy(config.evaluate.model_copy(update={"temperature": temperature})),
        env,
        tasks,
        limits=config.rollout,
        samples_per_task=config.evaluate.samples_per_task,
        seed=derive_seed(config.seed, "evaluate", name),
        ledger=parts.ledger,
    )
    write_trajectories(folder / f"{name}.parquet", 0, found.groups, None, parts.render.decode)
    return {**found.metrics(), "answers": [_share_right(group) for group in found.groups]}


def _share_right(group: Group) -> float | None:
    """The share of a task's episodes that succeeded; None where infrastructure ended them all."""
    scored = [episode.success for episode in group.trajectories if episode.stop is not StopReason.ENV_FAILED]
    return sum(scored) / len(scored) if scored else None
