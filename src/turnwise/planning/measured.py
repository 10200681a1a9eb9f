"""Measured runs: what a step did and how long each part of it took, from a run's own ledger.

Invariant: seconds are medians over steps of one process on one device that nothing else used; the parts add up to the
step.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

from turnwise.config import Config
from turnwise.envs.registry import EnvSettings
from turnwise.errors import RunError
from turnwise.planning.shape import ModelShape
from turnwise.runs.directory import RunDirectory
from turnwise.runs.metrics import read_metrics

_FEWEST_STEPS = 3
"""Steps without which a median says nothing."""
_WARM_UP = 2
"""First steps that are left out: kernels are compiled and caches filled in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one training step does."""

    episodes: float
    turns: float
    """Of all episodes together, as are all counts below."""
    action_tokens: float
    prompt_tokens: float
    """Tokens that the engine reads anew; those in a KV cache are not read again."""
    read_tokens: float
    """Tokens that an update reads, after filters, shared prompts and rows that are left out."""

    def scaled(self, factor: float) -> "Workload":
        return Workload(**{name: value * factor for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run's median step."""

    name: str
    device: str
    """`h200`"""
    env: str
    model: str
    shape: ModelShape
    compiled: bool
    forwards: float
    """Passes without gradients over the rows of an update, beside the ones that train: of old logprobs, a reference."""
    work: Workload
    seconds: Mapping[str, float]
    """By part: environment, render, prefill, decode, update, logprobs, rest; and `step`, their sum."""


PARTS = ("environment", "render", "prefill", "decode", "update", "logprobs", "rest")
_REST = ("store", "other", "load", "diagnose")


def read_table() -> list[MeasuredRun]:
    """The measured runs that this package comes with; `python -m benchmarks.plan` writes them."""
    text = resources.files("turnwise.planning").joinpath("measured.json").read_text(encoding="utf-8")
    return [from_json(row) for row in json.loads(text)["runs"]]


def from_json(row: Mapping[str, object]) -> MeasuredRun:
    shape, work = row["shape"], row["work"]
    assert isinstance(shape, dict)
    assert isinstance(work, dict)
    return MeasuredRun(**{**row, "shape": ModelShape(**shape), "work": Workload(**work)})  # type: ignore[arg-type]  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What of a run's settings its cost depends on."""

    env: str
    model: str
    shape: ModelShape
    compiled: bool
    epochs: int


def run_settings(config: Config, shape: ModelShape) -> RunSettings:
    return RunSettings(
        env=config.env.name if isinstance(config.env, EnvSettings) else "mixture",
        model=config.model.name,
        shape=shape,
        compiled=bool(config.learner.compile_for(parameters=shape.parameters, steps=config.steps)),
        epochs=config.learner.epochs,
    )


def measure_run(
    folder: str | Path, settings: RunSettings, *, device: str, steps: tuple[int, int] | None = None
) -> MeasuredRun:
    """The median step of a run, of all but its first steps or of `steps`, first and last."""
    records = [one for one in read_metrics(RunDirectory.open(folder).metrics) if one["stage"] == "train"]
    numbers = [int(one["step"] or 0) for one in records]
    first, last = steps or (min(numbers, default=0) + _WARM_UP, max(numbers, default=0))
    chosen = [one for one, number in zip(records, numbers, strict=True) if first <= number <= last]
    if len(chosen) < _FEWEST_STEPS:
        raise RunError(f"{folder}: {len(chosen)} steps to go by, {_FEWEST_STEPS} are needed: train it for longer")
    found = {name: _median(chosen, name) for name in {key for one in chosen for key in one if "/" in key}}
    episodes = found["rollout/episodes"]
    read = found["batch/tokens"] * (1 - found.get("batch/shared_share", 0)) * (1 - found.get("batch/skipped_share", 0))
    seconds = {part: found.get(f"ledger/{part}_seconds", 0.0) for part in PARTS[:-1]}
    seconds["rest"] = sum(found.get(f"ledger/{part}_seconds", 0.0) for part in _REST)
    return MeasuredRun(
        name=Path(folder).name,
        device=device,
        env=settings.env,
        model=settings.model,
        shape=settings.shape,
        compiled=settings.compiled,
        forwards=1.0 if seconds["logprobs"] else 0.0,
        work=Workload(
            episodes=episodes,
            turns=found["rollout/turns"] * episodes,
            action_tokens=found["rollout/action_tokens"],
            prompt_tokens=found["ledger/prompt_computed_tokens"],
            read_tokens=read * settings.epochs,
        ),
        seconds={**seconds, "step": sum(seconds.values())},
    )


def _median(records: Sequence[Mapping[str, object]], name: str) -> float:
    values = [float(value) for one in records if isinstance(value := one.get(name), int | float)]
    return statistics.median(values) if values else 0.0
