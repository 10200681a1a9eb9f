"""A real run: `turnwise train` by a recipe on real weights, and TRL's GRPOTrainer on the same questions after it.

Invariant: our side is the command that a user would type, in a process of its own and in the user's own environment,
and all numbers of it are from the run's own metrics. The peer starts from the weights that the run's cold start wrote,
is asked the questions that the run was asked, and has its settings from the run's config: nothing is written twice.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.benchmark import Scope
from benchmarks.harness.jobs import Job, JobFolders, JobResult
from benchmarks.speed.process import find_own_variables, measure_peer, run_command
from benchmarks.speed.variant import CPU, find_gpu, has_gpu, shorten_name
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.errors import ConfigError, RunError
from turnwise.ledger import ACCOUNTS
from turnwise.render import RenderSettings
from turnwise.runs import Record, RunDirectory, read_metrics
from turnwise.runs.episodes import list_episodes, trajectory_files
from turnwise.runs.findings import read_findings
from turnwise.types import Json

OURS, TRL = "real-run/turnwise", "real-run/trl"
"""The jobs; the second starts from what the first wrote."""
SCRIPT = Path("benchmarks/peers/trl_search.py")
FIRST_STEP = "checkpoints/step-000000/model"
"""What a run saves after its cold start."""
COUNTS = {
    "episodes": "rollout/episodes",
    "sampled_tokens": "rollout/action_tokens",
    "searches": "env/searches",
    "trained_tokens": "batch/tokens",
    "rollout_seconds": "time/rollout_seconds",
    "step_seconds": "ledger/wall_seconds",
}
"""What is read of a step beside its accounts, by the metric's name; searches are a mean over episodes."""
_RUN = "run"
_CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """One run, and how much of it counts."""

    name: str
    """Of its section and files: `h200-real-run`."""
    device: str
    about: str
    """The device in words: `NVIDIA H200`."""
    recipe: str
    overrides: tuple[str, ...]
    config: Config
    """The recipe with the overrides."""
    warmup: int
    """Steps before those that count: compilation, CUDA graphs, caches."""
    peer_warmup: int
    """Of the peer, whose steps are long; it is asked what we were asked in our last warm-up steps and after them."""
    peer_steps: int

    @property
    def title(self) -> str:
        """The recipe's name, without a folder of the user's."""
        return Path(self.recipe).stem

    @property
    def model(self) -> str:
        """The model's name, likewise."""
        return Path(self.config.model.name).name

    def check(self) -> None:
        """Makes the environment once, so that unreadable data is an error before the first job, and indexed."""
        make_env(self.config.env).tasks("train")

    def peer_options(self) -> dict[str, Json]:
        """The options of `trl_search.py`, from the config; the weights and the questions are known after our run."""
        config, rollout = self.config, self.config.rollout
        assert isinstance(config.env, EnvSettings), "`check_peer` refuses others"
        return {
            "env": json.dumps(config.env.args),
            "prompts": rollout.groups_per_step,
            "generations": rollout.group_size,
            "turns": rollout.max_turns,
            "turn-tokens": rollout.turn_tokens,
            "context-tokens": rollout.context_tokens,
            "temperature": rollout.temperature,
            "top-p": rollout.top_p,
            "top-k": rollout.top_k,
            "learning-rate": config.learner.optimizer.lr,
            "clip-low": config.loss.clip_low,
            "clip-high": config.loss.clip_high,
            "kl": config.loss.kl_coef,
            "device": self.device,
            "seed": config.seed,
            "warmup": self.peer_warmup,
            "steps": self.peer_steps,
        }

    def check_peer(self) -> None:
        """Refuses a recipe whose episodes or updates TRL's side would not do alike."""
        config, env = self.config, self.config.env
        alike = {
            "env.name": isinstance(env, EnvSettings) and env.name == "search_qa" and env.tasks is None,
            "credit.estimator": config.credit.estimator == "grpo",
            "loss.form": config.loss.form == "clip",
            "learner.epochs": config.learner.epochs == config.learner.minibatches == 1,
            "rollout.context_tokens": config.rollout.context_tokens is not None,
            "render": config.render == RenderSettings(),
            "model.lora": config.model.lora is None,
        }
        if unlike := [name for name, same in alike.items() if not same]:
            raise ConfigError(
                f"--peer: TRL's side plays search_qa and makes one step of GRPO a batch, and {self.recipe} has another "
                f"{' and another '.join(unlike)}; leave --peer out"
            )


def choose_real_run(scope: Scope) -> RealRun:
    """The run that the options choose; its cold start is short, since speed alone is measured."""
    assert scope.recipe is not None
    if scope.tokenizer is not None:
        raise ConfigError("bench speed: --tokenizer is for training steps beside TRL's on a CPU; leave it out")
    device = scope.device or ("cuda" if has_gpu() else CPU)
    about = "CPU" if device == CPU else find_gpu()
    warmup, steps, demonstrations = (2, 3, 200) if scope.quick else (5, 15, 2000)
    chosen = [f"model.device={device}", *_name_model(scope.model), *_name_data(scope.recipe, scope.data)]
    chosen += scope.overrides
    measured = ["evaluate.tasks=1", "evaluate.every=0", "evaluate.untrained=false"]
    measured += [f"steps={warmup + steps}", f"checkpoint.every={warmup + steps}", "checkpoint.keep=2"]
    sft = load_config(scope.recipe, chosen).sft
    if sft is not None and sft.chats is None:
        measured += [f"sft.demonstrations={min(sft.demonstrations, demonstrations)}", "sft.epochs=1"]
    _refuse_decided(scope.overrides, measured)
    chosen += measured
    return RealRun(
        name=f"{CPU if device == CPU else shorten_name(about)}-real-run",
        device=device,
        about=about,
        recipe=scope.recipe,
        overrides=tuple(chosen),
        config=load_config(scope.recipe, chosen),
        warmup=warmup,
        peer_warmup=1,
        peer_steps=1 if scope.quick else 2,
    )


def _refuse_decided(overrides: Sequence[str], measured: Sequence[str]) -> None:
    """What the benchmark decides cannot be set."""
    decided = {setting.partition("=")[0] for setting in measured}
    for key in (override.partition("=")[0] for override in overrides):
        if key in decided:
            raise ConfigError(f"{key}: what is measured decides it, not a setting of yours; leave it out")


def plan_real_run(run: RealRun, *, peer: str | None, code: str) -> list[Job]:
    """Our run, then the peer from its weights; `code` is the digest of all code that is measured."""
    run.check()
    settings: dict[str, Json] = {
        "recipe": run.recipe,
        "overrides": list(run.overrides),
        "config": run.config.model_dump(mode="json"),
        "warmup": run.warmup,
        "variables": find_own_variables(),
        "code": code,
    }
    ours = Job(name=OURS, work=f"{__name__}:run_ours", settings=settings)
    if peer is None:
        return [ours]
    run.check_peer()
    first = run.warmup - run.peer_warmup + 1
    told: dict[str, Json] = {
        "python": peer,
        "options": run.peer_options(),
        "asked_in": list(range(first, first + run.peer_warmup + run.peer_steps)),
        "variables": find_own_variables(),
        "code": code,
    }
    return [ours, Job(name=TRL, work=f"{__name__}:run_trl", settings=told, after=ours)]


def run_ours(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of our run: trains to the end, and returns the steps that count, column by column."""
    overrides, run = settings["overrides"], folders.own / _RUN
    assert isinstance(overrides, list)
    command = [sys.executable, "-m", "turnwise", "train", str(settings["recipe"]), *map(str, overrides)]
    run_command([*command, "--run", str(run), "--resume=auto"], folders.own, _read_variables(settings))
    warmup = settings["warmup"]
    assert isinstance(warmup, int)
    return {**read_steps(read_metrics(run / "metrics.jsonl"), warmup), "slow_reason": _find_slow_reason(run)}


def read_steps(records: Sequence[Record], warmup: int) -> dict[str, Json]:
    """`{"steps": [6, 7], "step_seconds": [2.1, 2.2], "decode_seconds": [.2, .2], ...}`, without the warm-up."""
    counted = [record for record in records if record["stage"] == "train" and int(_number(record, "step")) > warmup]
    names = {**COUNTS, **{f"{account}_seconds": f"ledger/{account}_seconds" for account in ACCOUNTS}}
    columns: dict[str, Json] = {name: [_number(record, metric) for record in counted] for name, metric in names.items()}
    return {"steps": [int(_number(record, "step")) for record in counted], **columns}


def _find_slow_reason(run: Path) -> str | None:
    """Why the run did not sample by the engine's fused forward, if it did not."""
    found = read_findings(run / "findings.jsonl")
    return next((str(one["sentence"]) for one in found if one["kind"] == "slow_sampling"), None)


def run_trl(settings: Mapping[str, Json], folders: JobFolders) -> JobResult:
    """The job of TRL's steps, on what ours was asked; a failure to run is a result and not an error."""
    assert folders.before is not None
    asked_in, options, run = settings["asked_in"], settings["options"], (folders.before / _RUN).absolute()
    assert isinstance(asked_in, list)
    assert isinstance(options, Mapping)
    tasks = folders.own / "tasks.json"
    tasks.write_text(json.dumps([task for step in asked_in for task in read_tasks(run, step)]), encoding="utf-8")
    told = {**options, "model": str(run / FIRST_STEP), "tasks": str(tasks.absolute())}
    command: dict[str, Json] = {"python": settings["python"], "script": str(SCRIPT), "options": told}
    paths = os.pathsep.join(filter(None, (str(_CHECKOUT / "src"), os.environ.get("PYTHONPATH"))))
    try:
        return measure_peer(command, folders, {**_read_variables(settings), "PYTHONPATH": paths})
    except RunError as error:
        return {"failure": str(error)}


def _read_variables(settings: Mapping[str, Json]) -> dict[str, str | None]:
    variables = settings["variables"]
    assert isinstance(variables, Mapping)
    return {name: None if value is None else str(value) for name, value in variables.items()}


def read_tasks(run: Path, step: object) -> list[str]:
    """The ids of the questions of a training step, in order."""
    assert isinstance(step, int)
    problems: list[str] = []
    lines = list(list_episodes(trajectory_files(RunDirectory(run), stage="train", step=step), problems))
    if problems or not lines:
        raise RunError("; ".join(problems) or f"{run}: has no trajectories of step {step}; delete its job's folder")
    by_group = {line.group: line.task_id for line in lines}
    return [by_group[group] for group in sorted(by_group)]


def _name_model(model: str | None) -> list[str]:
    if model is None:
        return []
    path = Path(model)
    if not (path / "config.json").is_file() and not (path.suffix == ".gguf" and path.is_file()):
        raise ConfigError(f"--model: {model} is no folder with a config.json in it and no .gguf file; give one")
    return [f"model.name={json.dumps(str(path.absolute()))}"]


def _name_data(recipe: str, folder: str | None) -> list[str]:
    """Overrides by which the files that a recipe looks for in `data` are looked for in a folder."""
    if folder is None:
        return []
    env = load_config(recipe).env
    args = env.args if isinstance(env, EnvSettings) else {}
    named = [name for name, value in args.items() if _move(value, "") != value]
    if not named:
        raise ConfigError(f"--data: {recipe} names no file beneath data/ that could be elsewhere; leave it out")
    if not Path(folder).is_dir():
        raise ConfigError(f"--data: there is no folder {folder}; give the one that the recipe calls data")
    return [f"env.args.{name}={json.dumps(_move(args[name], folder))}" for name in named]


def _move(value: object, folder: str) -> object:
    """`{"train": ["data/a.jsonl"]}` with the folder in place of `data`."""
    if isinstance(value, Mapping):
        return {name: _move(one, folder) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_move(one, folder) for one in value]
    if isinstance(value, str) and Path(value).parts[:1] == ("data",):
        return str(Path(folder, *Path(value).parts[1:]))
    return value


def _number(record: Record, name: str) -> float:
    value = record.get(name, 0.0)
    assert isinstance(value, int | float), name
    return float(value)
