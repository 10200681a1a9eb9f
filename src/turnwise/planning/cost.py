"""The cost of a step: seven terms, each linear in what the step does, with coefficients fitted to measured runs.

    environment = e · turns                                e: of runs with the same environment, else of all
    render      = r · (prompt + action tokens)
    prefill     = 2 · body · n / (u · flops) + p · layers · width · n                       n: prompt tokens
    decode      = iterations · max(d, bytes / bandwidth)   iterations = waves · action tokens / episodes
    update      = (3 + checkpointing) / 3 · (6 · body · n / (u · flops) + b · layers · width · n)      n: tokens read
    logprobs    = forwards · update / 3
    rest        = s                                        store, weights to the engine, diagnosis

`b` has two values, with torch.compile and without; `bytes` are the weights and the KV cache of the conversations that
are sampled, read once per iteration. Invariant: the error given is that of runs which the coefficients have not seen.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import RunError
from turnwise.planning.hardware import Hardware
from turnwise.planning.measured import PARTS, MeasuredRun, Workload
from turnwise.planning.shape import ModelShape

_HALF = 2
"""Bytes of a number in half precision, in which engines sample and products run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What was fitted."""

    environment: Mapping[str, float]
    """Seconds per turn, by environment."""
    any_environment: float
    render: float
    prefill: float
    """Seconds per token, layer and width, beside the products."""
    decode: float
    """Seconds of an iteration of the engine that reads little."""
    utilisation: float
    """Share of peak that the products of an update reach."""
    eager: float
    """Seconds per token, layer and width of an update, beside its products."""
    compiled: float
    rest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of predictions of runs that were left out of the fit, as shares of what was measured."""

    by_run: Mapping[str, float]
    """Of the step; above 0: predicted too long."""
    by_part: Mapping[str, float]
    """Mean absolute error of each part, as a share of the measured step."""

    @property
    def mean(self) -> float:
        return statistics.fmean(abs(error) for error in self.by_run.values())

    @property
    def worst(self) -> float:
        return max(abs(error) for error in self.by_run.values())


def fit(runs: Sequence[MeasuredRun], hardware: Hardware) -> Coefficients:
    """Least squares of relative errors."""
    if not runs:
        raise RunError("no measured run to go by")
    by_env: dict[str, list[float]] = {}
    for run in runs:
        by_env.setdefault(run.env, []).append(run.seconds["environment"] / run.work.turns)
    utilisation, eager, compiled = _fit_update(runs, hardware)
    return Coefficients(
        environment={env: statistics.fmean(values) for env, values in by_env.items()},
        any_environment=statistics.fmean(value for values in by_env.values() for value in values),
        render=_rate(runs, "render", lambda run: run.work.prompt_tokens + run.work.action_tokens),
        prefill=statistics.fmean(_prefill_beside_products(run, hardware, utilisation) for run in runs),
        decode=_rate(runs, "decode", lambda run: run.work.action_tokens / run.work.episodes),
        utilisation=utilisation,
        eager=eager,
        compiled=compiled,
        rest=statistics.fmean(run.seconds["rest"] for run in runs),
    )


def _rate(runs: Sequence[MeasuredRun], part: str, amount: Callable[[MeasuredRun], float]) -> float:
    """The factor whose relative errors have the least squares."""
    ratios = [amount(run) / run.seconds[part] for run in runs if run.seconds[part] > 0]
    return sum(ratios) / sum(ratio**2 for ratio in ratios) if ratios else 0.0


def _fit_update(runs: Sequence[MeasuredRun], hardware: Hardware) -> tuple[float, float, float]:
    """Utilisation, and seconds per token, layer and width of plain and of compiled updates."""
    rows = []
    for run in runs:
        n, measured = run.work.read_tokens, run.seconds["update"]
        other = run.shape.layers * run.shape.width * n / measured
        products = 3 * _products(run.shape, n, hardware) / measured
        rows.append([products, 0.0 if run.compiled else other, other if run.compiled else 0.0])
    solution = _non_negative(np.array(rows), np.ones(len(rows)))
    inverse, eager, compiled = (float(one) for one in solution)
    inverse = max(inverse, 1.0)  # more than peak is an artefact of few runs
    return 1 / inverse, eager or compiled, compiled or eager


def _products(shape: ModelShape, tokens: float, hardware: Hardware) -> float:
    """Seconds that the products of a forward pass take at peak."""
    return 2 * shape.body * tokens / hardware.flops


def _prefill_beside_products(run: MeasuredRun, hardware: Hardware, utilisation: float) -> float:
    tokens = run.work.prompt_tokens
    left = run.seconds["prefill"] - _products(run.shape, tokens, hardware) / utilisation
    return max(left, 0.0) / (run.shape.layers * run.shape.width * tokens)


def _non_negative(a: NDArray[np.float64], b: NDArray[np.float64]) -> list[float]:
    """Least squares with no coefficient below 0: by dropping the most negative one, and again."""
    free = [column for column in range(a.shape[1]) if a[:, column].any()]
    found = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
    while (found < 0).any():
        free.pop(int(found.argmin()))
        found = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
    by_column = dict(zip(free, found.tolist(), strict=True))
    return [by_column.get(column, 0.0) for column in range(a.shape[1])]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What of a recipe a step's time depends on, beside its workload."""

    env: str
    shape: ModelShape
    slots: int
    compiled: bool
    checkpointing: bool
    forwards: float
    critic: bool


def predict(coefficients: Coefficients, hardware: Hardware, work: Workload, settings: StepSettings) -> dict[str, float]:
    """Seconds of each part of a step on one GPU, and of the `step`."""
    shape, n = settings.shape, work.read_tokens
    tokens = work.action_tokens / work.episodes
    waves = max(1.0, work.episodes / settings.slots)
    sampled = min(work.episodes, settings.slots)
    context = (work.prompt_tokens + work.action_tokens) / work.episodes
    read = _HALF * (shape.body + shape.head + sampled * context / 2 * shape.kv_numbers)
    plain = coefficients.compiled if settings.compiled else coefficients.eager
    products = 3 * _products(shape, n, hardware) / coefficients.utilisation
    update = (products + plain * shape.layers * shape.width * n) * (4 if settings.checkpointing else 3) / 3
    models = 2 if settings.critic else 1
    parts = {
        "environment": coefficients.environment.get(settings.env, coefficients.any_environment) * work.turns,
        "render": coefficients.render * (work.prompt_tokens + work.action_tokens),
        "prefill": _products(shape, work.prompt_tokens, hardware) / coefficients.utilisation
        + coefficients.prefill * shape.layers * shape.width * work.prompt_tokens,
        "decode": waves * tokens * max(coefficients.decode, read / hardware.bandwidth),
        "update": update * models,
        "logprobs": (settings.forwards + models - 1) * update / 3,
        "rest": coefficients.rest,
    }
    return {**parts, "step": sum(parts.values())}


def settings_of(run: MeasuredRun) -> StepSettings:
    """As a measured run was made: every conversation had a slot."""
    return StepSettings(
        env=run.env,
        shape=run.shape,
        slots=int(run.work.episodes),
        compiled=run.compiled,
        checkpointing=False,
        forwards=run.forwards,
        critic=False,
    )


def leave_one_out(runs: Sequence[MeasuredRun], hardware: Hardware) -> Errors:
    """Predicts each run by coefficients fitted to the others."""
    by_run: dict[str, float] = {}
    by_part: dict[str, list[float]] = {part: [] for part in PARTS}
    for run in runs:
        others = [other for other in runs if other is not run]
        found = predict(fit(others, hardware), hardware, run.work, settings_of(run))
        by_run[run.name] = found["step"] / run.seconds["step"] - 1
        for part in PARTS:
            by_part[part].append(abs(found[part] - run.seconds[part]) / run.seconds["step"])
    return Errors(by_run=by_run, by_part={part: statistics.fmean(values) for part, values in by_part.items()})
