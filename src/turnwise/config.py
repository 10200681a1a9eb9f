"""A whole experiment in one value: the rooms' settings put together.

Invariant: a recipe with a key nobody reads does not parse, and the config written into a run parses back to itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from turnwise.credit.estimate import CreditSettings
from turnwise.engines.settings import EngineSettings, LocalEngineSettings
from turnwise.envs.registry import EnvSettings
from turnwise.errors import ConfigError, RunError
from turnwise.evaluation import EvaluateSettings
from turnwise.learner.settings import LearnerSettings
from turnwise.learner.sft import SFTSettings
from turnwise.losses.settings import LossSettings
from turnwise.models.loading import ModelSettings
from turnwise.recipes import read_recipe
from turnwise.render.template import RenderSettings
from turnwise.rollout import RolloutSettings
from turnwise.runs import Checkpoints, RunDirectory
from turnwise.settings import Settings, parse_settings
from turnwise.stability import Regime, StabilitySettings


class CheckpointSettings(Settings):
    """When a run is saved."""

    every: int = Field(default=10, ge=1)
    """Save after every so many training steps, and always after the cold start and the last step."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept."""


class Config(Settings):
    """An experiment; every section has defaults but the environment."""

    env: EnvSettings
    model: ModelSettings = ModelSettings()
    seed: int = Field(default=0, ge=0)
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
    render: RenderSettings = RenderSettings()
    engine: EngineSettings = LocalEngineSettings()

    @property
    def regime(self) -> Regime:
        """What the run itself is chosen, credited and learnt by; a remedy may be laid over it."""
        return Regime(filter=self.stability.filter, credit=self.credit, loss=self.loss)


ALGORITHMS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "ppo": {"credit": {"estimator": "gae"}},
    "turn-ppo": {"credit": {"estimator": "turn-gae"}},
    "bilevel-ppo": {"credit": {"estimator": "bilevel-gae"}},
    "grpo": {"credit": {"estimator": "grpo"}},
    "dr-grpo": {
        "credit": {"estimator": "dr-grpo"},
        "loss": {"aggregation": "fixed", "fixed_length": 2048},  # 8 turns of 256 tokens, the default limits
    },
    "gspo": {
        "credit": {"estimator": "grpo"},
        "loss": {
            "form": "gspo",
            "ratio": "trajectory",
            "aggregation": "trajectory",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
        },
    },
    "cispo": {"credit": {"estimator": "grpo"}, "loss": {"form": "cispo"}},
    "gigpo": {"credit": {"estimator": "gigpo", "turn_gamma": 0.95}},
    "rloo": {"credit": {"estimator": "rloo"}},
    "reward-to-go": {"credit": {"estimator": "reward-to-go"}},
    "reinforce++": {"credit": {"estimator": "reinforce++"}},
    "reinforce++-baseline": {"credit": {"estimator": "reinforce++-baseline"}},
}
"""Short names for what a recipe spells out; `turnwise.train(algorithm=...)` takes these."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """A recipe with overrides: `load_config("encyclopedia-grpo", ["steps=20", "loss.kl_coef=0.01"])`."""
    return check_config(parse_settings(Config, read_recipe(path), overrides=overrides, source=str(path)))


def check_config(config: Config) -> Config:
    """Refuses what each section allows but together cannot work."""
    config.rollout.require_trainable("rollout")
    if config.steps:
        _check_regimes(config)
    _check_serving(config)
    return config


def _check_regimes(config: Config) -> None:
    """The run's own regime, and the one under a remedy that may come into force."""
    regimes = [("stability.filter", config.regime)]
    if config.stability.mode in ("auto", "always"):
        try:
            regimes.append(("stability.remedy.filter", config.stability.remedy.over(config.regime)))
        except ValidationError as error:
            said = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"stability.remedy: {said}") from None
    for where, regime in regimes:
        if config.rollout.group_size > 1:
            continue
        if regime.credit.compares_groups:
            raise ConfigError(
                f"rollout.group_size: {regime.credit.estimator} compares a task's responses with each other: set 2 or "
                "more"
            )
        if regime.filter.rule != "none":
            raise ConfigError(
                f"{where}: one response per task has no spread to go by: set rollout.group_size to 2 or more, or the "
                "rule to none"
            )


def _check_serving(config: Config) -> None:
    """Samples that wait for their update are not saved, so a checkpoint may only stand between two rollouts."""
    serves = config.rollout.updates_per_rollout
    for name, value in (("steps", config.steps), ("checkpoint.every", config.checkpoint.every)):
        if value % serves:
            raise ConfigError(f"{name}: {value} is no multiple of rollout.updates_per_rollout={serves}: change either")


def load_run_config(folder: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a run, its model replaced by the newest checkpoint: what `turnwise eval RUN` evaluates."""
    run = RunDirectory.open(folder)
    checkpoint = Checkpoints(run.checkpoints).latest()
    if checkpoint is None:
        raise RunError(f"{folder}: this run has no checkpoint yet; let it finish its cold start first")
    config = load_config(run.config, overrides)
    model = config.model.model_copy(update={"name": str(checkpoint / "model"), "tokenizer": None, "lora": None})
    return config.model_copy(update={"model": model})
