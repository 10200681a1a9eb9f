"""A whole experiment in one value: the rooms' settings put together. No torch: a recipe's mistake is found at once.

Invariant: unknown keys are errors with a suggestion, and so are settings that the chosen algorithm never reads; the
config written into a run parses back to itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field, ValidationError

from turnwise.algorithms import apply_algorithm
from turnwise.cluster.settings import ClusterSettings, LocalCluster, RayCluster
from turnwise.credit.settings import CreditSettings
from turnwise.engines.settings import EngineSettings, LocalEngineSettings, OpenAIEngineSettings, VLLMEngineSettings
from turnwise.envs.registry import AnyEnvSettings, MixtureSettings, settings_by_env
from turnwise.envs.workers.settings import RayWorkers
from turnwise.errors import ConfigError, RunError
from turnwise.evaluation.settings import EvaluateSettings
from turnwise.familiar import FAMILIAR
from turnwise.learner.settings import LearnerSettings, SFTSettings
from turnwise.losses.settings import STALE_TIS_CAP, LossSettings
from turnwise.models.settings import ModelSettings
from turnwise.plugins import PluginSettings
from turnwise.recipes import read_recipe
from turnwise.render.template import RenderSettings
from turnwise.rollout import RolloutSettings
from turnwise.runs.settings import TrajectorySettings
from turnwise.settings import KeyPath, Recipe, Settings, add_overrides, parse_settings
from turnwise.sources import adopt_run, claim_names, strings_of
from turnwise.stability import AlgorithmSettings, StabilitySettings

Unread: TypeAlias = tuple[KeyPath, tuple[KeyPath, ...]]
"""A setting that nothing reads, and those that decide it."""


class CheckpointSettings(Settings):
    """When a run is saved."""

    every: int = Field(default=10, ge=0)
    """Save after every so many training steps, and always after the cold start and the last step; 0: only then."""
    keep: int = Field(default=2, ge=1)
    """The newest checkpoints that are kept."""
    format: Literal["auto", "whole", "sharded"] = "auto"
    """`whole`: rank 0 writes one folder that transformers loads. `sharded`: each process writes its part of weights and
    moments, and none ever holds all of them; `turnwise export` makes one folder of it. `auto`: sharded where processes
    share one copy of the model (`learner.shard`). Either is resumed by any number of processes, sharded or not."""
    async_save: bool | None = None
    """Write a checkpoint of training while it goes on, from a copy in the host's memory. null: on a GPU, where there is
    room for the copy. Sharded checkpoints and adapters are written in place, and so are those of the cold start."""
    sft_every: int = Field(default=0, ge=0)
    """In the cold start, save after every so many of its steps; 0: by `sft_minutes` alone."""
    sft_minutes: float = Field(default=5.0, ge=0)
    """In the cold start, save when so many minutes have passed since it last saved; 0: by `sft_every` alone."""


class Config(Settings):
    """An experiment; every section has defaults but the environment."""

    familiar_names = FAMILIAR

    env: AnyEnvSettings
    model: ModelSettings = ModelSettings()
    seed: int = Field(default=0, ge=0)
    """All randomness of the run follows from it: initial weights, the order of tasks, episodes, sampling."""
    steps: int = Field(default=100, ge=0)
    """Training steps: each samples `rollout.groups_per_step` × `rollout.group_size` episodes and learns from them."""
    sft: SFTSettings | None = None
    """Imitate demonstrations first; None begins with reinforcement learning."""
    rollout: RolloutSettings = RolloutSettings()
    credit: CreditSettings = CreditSettings()
    loss: LossSettings = LossSettings()
    learner: LearnerSettings = LearnerSettings()
    stability: StabilitySettings = StabilitySettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    trajectories: TrajectorySettings = TrajectorySettings()
    render: RenderSettings = RenderSettings()
    engine: EngineSettings = LocalEngineSettings()
    cluster: ClusterSettings = LocalCluster()
    callbacks: tuple[PluginSettings, ...] = ()
    """Observers of the run: tensorboard, wandb, mlflow, trackio, or your own: `[tensorboard, my_package:Mine]`."""

    @property
    def algorithm_settings(self) -> AlgorithmSettings:
        """The run's own filter, credit and loss; StarPO-S may override them."""
        return AlgorithmSettings(filter=self.stability.filter, credit=self.credit, loss=self.loss)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """A recipe with overrides: `load_config("encyclopedia-grpo", ["steps=20", "loss.kl_coef=0.01"])`."""
    return parse_config(resolve_recipe(read_recipe(path), overrides), str(path))


def resolve_recipe(recipe: Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe with overrides, and the settings of the algorithm that either names."""
    return apply_algorithm(Config, add_overrides(Config, recipe, overrides))


def parse_config(recipe: Recipe, source: str) -> Config:
    """The experiment that a resolved recipe of the user's describes, checked as a whole."""
    claim_names(recipe)
    config = check_config(parse_settings(Config, recipe, source=source))
    check_read(config, recipe.ranks)
    return config


def check_config(config: Config) -> Config:
    """The config as it runs; refuses what each section allows but together cannot work, and plug-ins that are not there
    or not made so."""
    config = _correct_staleness(config)
    config.rollout.require_trainable("rollout")
    if config.steps:
        _check_algorithm(config)
    _check_rollout(config)
    _check_env(config)
    _check_learner(config)
    _check_cluster(config)
    return config


def _check_algorithm(config: Config) -> None:
    """Checks the run's own algorithm settings, and those under StarPO-S if it may be enabled."""
    candidates = [("stability.filter", config.algorithm_settings)]
    if config.stability.mode in ("auto", "always"):
        try:
            overridden = config.stability.starpo_s.apply_to(config.algorithm_settings)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"stability.starpo_s: {message}") from None
        candidates.append(("stability.starpo_s.filter", overridden))
    for where, settings in candidates:
        for section in (settings.filter, settings.credit, settings.loss):
            section.arguments()  # raises for a plug-in that is not there, or that has no such arguments
        key, size = _smallest_group(config)
        if size > 1:
            continue
        if settings.credit.compares_groups:
            raise ConfigError(
                f"{key}: {settings.credit.estimator} compares a task's responses with each other: set 2 or more"
            )
        if settings.filter.compares_groups:
            raise ConfigError(
                f"{where}: one response per task has no reward std to go by: set {key} to 2 or more, or the rule to "
                "none"
            )


def _check_env(config: Config) -> None:
    for where, env in settings_by_env(config.env).items():
        if env.chaos is not None and env.chaos.kill and not env.workers:
            raise ConfigError(
                f"{where}.chaos.kill: it would kill the trainer: set {where}.workers to 1 or more, or kill to 0"
            )
        if env.workers and config.sft is not None and config.sft.workers:
            raise ConfigError(f"sft.workers: {where}.workers plays demonstrations in processes already: set it to 0")
        if isinstance(env.workers_on, RayWorkers) and not isinstance(config.cluster, RayCluster):
            raise ConfigError(
                f"{where}.workers_on: the section cluster says which Ray cluster: set cluster to {{kind: ray, "
                "rollout_workers: 0}, or rollout_workers to more where engines are to be on it, too"
            )


def _smallest_group(config: Config) -> tuple[str, int]:
    """The least number of responses per task, and the setting that it comes from."""
    sizes = {"rollout.group_size": config.rollout.group_size}
    if isinstance(config.env, MixtureSettings):
        own = {name: entry.group_size for name, entry in config.env.mixture.items()}
        given = {f"env.mixture.{name}.group_size": size for name, size in own.items() if size is not None}
        sizes = given if len(given) == len(own) else sizes | given
    key = min(sizes, key=lambda name: sizes[name])
    return key, sizes[key]


def _check_rollout(config: Config) -> None:
    """Samples that wait for their update are not saved, so a checkpoint may only stand between two rollouts."""
    updates = config.rollout.updates_per_rollout
    if updates > 1 and config.rollout.staleness:
        raise ConfigError(
            "rollout.updates_per_rollout: rollout.staleness already learns from samples of older weights: leave it at 1"
        )
    for name, value in (("steps", config.steps), ("checkpoint.every", config.checkpoint.every)):
        if value % updates:
            raise ConfigError(f"{name}: {value} is no multiple of rollout.updates_per_rollout={updates}: change either")


def _correct_staleness(config: Config) -> Config:
    """Samples of older weights are corrected for, by a truncated importance weight unless something else is chosen."""
    loss = config.loss
    if not config.rollout.staleness or loss.corrects_sampler or loss.old_logprobs is not None:
        return config
    return config.model_copy(update={"loss": loss.model_copy(update={"tis_cap": STALE_TIS_CAP})})


def _check_learner(config: Config) -> None:
    for name, section in (("learner", config.learner), ("sft", config.sft)):
        if config.learner.shard and section is not None and section.compile:
            raise ConfigError(f"{name}.compile: layers that learner.shard gathers cannot be compiled: disable either")
    if config.learner.activation_offload and config.learner.compile:
        raise ConfigError("learner.compile: what compiled layers save cannot be offloaded: disable either")
    if config.learner.activation_offload and config.model.autocast and not config.learner.checkpointing:
        # Layers save the rounded copies of their weights, which cannot be told from activations.
        raise ConfigError(
            "learner.activation_offload: with model.autocast a copy of all weights would be moved in every pass: "
            "enable learner.checkpointing too"
        )


def _check_cluster(config: Config) -> None:
    """Rollout workers load weights each by itself, so that a server has one of them at most."""
    cluster, engine = config.cluster, config.engine
    if not isinstance(cluster, RayCluster) or cluster.rollout_workers == 1:
        return
    if not cluster.rollout_workers:
        envs_on_ray = any(isinstance(env.workers_on, RayWorkers) for env in settings_by_env(config.env).values())
        if cluster.learners == 1 and not envs_on_ray:
            raise ConfigError(
                "cluster.rollout_workers: 0 leaves nothing for the cluster to do: set env.workers_on.kind to ray, or "
                "cluster.kind to local"
            )
        return
    named = isinstance(engine, VLLMEngineSettings) and not isinstance(engine.servers, int)
    if named or isinstance(engine, OpenAIEngineSettings):
        raise ConfigError(
            f"cluster.rollout_workers: {cluster.rollout_workers} workers would load weights into the same servers: set "
            "it to 1, or engine.servers to the number that each worker starts for itself"
        )


def check_read(config: Config, ranks: Mapping[KeyPath, int] | None = None) -> None:
    """Refuses a setting that was given and that the chosen algorithm, or an evaluation, never reads.

    `ranks` are those of a `Recipe`: what an extended recipe set for the algorithm that its extension replaces is no
    mistake. Without them, every setting that was given counts.
    """
    _refuse_given(config, _find_unread_by_evaluation(config), ranks)
    if config.steps:
        starpo_s = _is_given(config, ("stability", "starpo_s"), ranks)
        _refuse_given(config, _find_unread(config, starpo_s=starpo_s), ranks)


def _refuse_given(config: Config, unread: Iterable[Unread], ranks: Mapping[KeyPath, int] | None) -> None:
    for key, choosers in unread:
        chosen = max(_rank(chooser, ranks) for chooser in choosers)
        if _is_given(config, key, ranks) and _rank(key, ranks) >= chosen:
            value: object = config
            for part in choosers[0]:
                value = getattr(value, part)
            name, chooser = ".".join(key), ".".join(choosers[0])
            raise ConfigError(f"{name}: never read while {chooser} is {value}: remove it, or change {chooser}")


def _find_unread_by_evaluation(config: Config) -> Iterator[Unread]:
    for key, chooser in _walk_unread(config.evaluate, ("evaluate",)):
        yield key, (chooser,)


def _find_unread(config: Config, *, starpo_s: bool) -> Iterator[Unread]:
    """Settings that nothing reads, each with those that decide it.

    Credit and loss are read under StarPO-S, too, if it may be enabled or a recipe has settings of it for runs that may.
    """
    in_play = [config.algorithm_settings]
    if config.stability.mode in ("auto", "always") or starpo_s:
        with suppress(ValidationError):  # it would be refused where the mode enables it
            in_play.append(config.stability.starpo_s.apply_to(config.algorithm_settings))
    mode = ("stability", "mode")
    for key, chooser in _walk_unread(config, ()):
        section, name = key[0], key[1]
        if section not in ("credit", "loss"):
            yield key, (chooser,)
        elif all(name in getattr(settings, section).unread() for settings in in_play):
            yield key, (chooser, mode)
    if not any(settings.credit.needs_critic for settings in in_play):
        for key in (("learner", "critic"), ("loss", "value_clip")):
            yield key, (("credit", "estimator"), mode)


def _walk_unread(settings: Settings, prefix: KeyPath) -> Iterator[tuple[KeyPath, KeyPath]]:
    for key, chooser in settings.unread().items():
        yield (*prefix, key), (*prefix, chooser)
    for name in type(settings).model_fields:
        section = getattr(settings, name)
        if isinstance(section, Settings):
            yield from _walk_unread(section, (*prefix, name))


def _is_given(config: Config, key: KeyPath, ranks: Mapping[KeyPath, int] | None) -> bool:
    if ranks is not None and _rank(key, ranks) < 0:
        return False
    settings: object = config
    for part in key:
        if not isinstance(settings, Settings) or part not in settings.model_fields_set:
            return False
        settings = getattr(settings, part)
    return True


def _rank(path: KeyPath, ranks: Mapping[KeyPath, int] | None) -> int:
    """The highest layer in which the value, or a part of it, was given; −1: in none."""
    if ranks is None:
        return 0
    near = [rank for known, rank in ranks.items() if known[: len(path)] == path[: len(known)]]
    return max(near, default=-1)


def read_run_config(folder: Path, overrides: Sequence[str] = (), *, trust: bool = False) -> Config:
    """The config that a run was trained with. Python that it names is run only if it is the user's own, or trusted.

    An evaluation runs nothing of the algorithm, so that is not looked at again.
    """
    from turnwise.runs.directory import RunDirectory

    path = RunDirectory.open(folder).config
    recipe, given = read_recipe(path), add_overrides(Config, Recipe(()), overrides)
    adopt_run(folder, recipe, own=set(strings_of(given)), trust=trust)
    config = parse_settings(Config, resolve_recipe(recipe, overrides), source=str(path))
    _refuse_given(config, _find_unread_by_evaluation(config), given.ranks)
    return config


def load_run_config(folder: str | Path, overrides: Sequence[str] = (), *, trust: bool = False) -> Config:
    """The config of a run, its model replaced by the newest checkpoint: what `turnwise eval RUN` evaluates."""
    config = read_run_config(Path(folder), overrides, trust=trust)
    from turnwise.runs import Checkpoints, RunDirectory  # checkpoints are torch's

    checkpoint = Checkpoints(RunDirectory.open(folder).checkpoints).newest_whole()
    if checkpoint is None:
        raise RunError(f"{folder}: this run has no checkpoint yet; let it finish its cold start first")
    model = config.model.model_copy(update={"name": str(checkpoint / "model"), "tokenizer": None, "lora": None})
    return config.model_copy(update={"model": model})
