"""From a recipe to a plan: its workload and shape, coefficients, errors, and the splits of its GPUs."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.config import Config
from turnwise.planning.cost import Errors, StepSettings, fit, leave_one_out, predict, settings_of
from turnwise.planning.hardware import KNOWN, Hardware, find_hardware
from turnwise.planning.measured import MeasuredRun, Workload, read_table, run_settings
from turnwise.planning.memory import LearnerMemory, engine_memory, learner_memory
from turnwise.planning.shape import ModelShape, find_shape
from turnwise.planning.split import Planner, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is predicted, from what, and how far it was off before."""

    shape: ModelShape
    workload: Workload
    workload_from: str
    """Where the number of turns and tokens of an episode comes from."""
    hardware: Hardware
    errors: Errors | None
    """Of runs that were left out of the fit; None after a calibration, which has one run."""
    calibrated_by: str | None
    parts: dict[str, float]
    """Seconds on one GPU."""
    shared: Split
    splits: tuple[Split, ...]
    memory: LearnerMemory
    engine: float


def make_plan(config: Config, *, gpus: int, gpu: str = "h200", calibration: MeasuredRun | None = None) -> Plan:
    """Predicts a recipe on so many GPUs, by the table of measured runs, or scaled to a run of one's own."""
    table = read_table()
    hardware = find_hardware(gpu) if calibration is None else KNOWN["h200"]
    shape = find_shape(config.model, {run.model: run.shape for run in table})
    work, source = find_workload(config, [calibration] if calibration is not None else table)
    coefficients, errors, factors = fit(table, hardware), leave_one_out(table, hardware), {}
    if calibration is not None:
        there = predict(coefficients, hardware, calibration.work, settings_of(calibration))
        factors = {part: calibration.seconds[part] / there[part] for part in there if there[part] > 0}
    settings = step_settings(config, shape)
    trained = trained_parameters(config, shape)
    planner = Planner(
        coefficients=coefficients,
        hardware=hardware,
        work=work,
        settings=settings,
        trained=trained,
        sharded=config.learner.shard,
        micro_batches=work.read_tokens / config.learner.first_microbatch,
        factors=factors,
    )
    learning = max(gpus - 1, 1)
    return Plan(
        shape=shape,
        workload=work,
        workload_from=source,
        hardware=hardware,
        errors=errors if calibration is None else None,
        calibrated_by=None if calibration is None else calibration.name,
        parts=planner.parts(),
        shared=planner.shared(gpus),
        splits=tuple(planner.splits(gpus)),
        memory=learner_memory(config, shape, trained=trained, ranks=learning),
        engine=engine_memory(config, shape, context=(work.prompt_tokens + work.action_tokens) / work.episodes),
    )


def step_settings(config: Config, shape: ModelShape) -> StepSettings:
    several_steps = config.learner.epochs * config.learner.minibatches > 1
    return StepSettings(
        env=run_settings(config, shape).env,
        shape=shape,
        slots=config.engine.slots,
        compiled=bool(config.learner.compile_for(parameters=shape.parameters, steps=config.steps)),
        checkpointing=config.learner.checkpointing,
        forwards=float(several_steps) + float(config.loss.kl_coef > 0),
        critic=config.credit.needs_critic,
    )


def trained_parameters(config: Config, shape: ModelShape) -> int:
    """All, or with adapters on all linear layers two thin matrices for each."""
    if config.model.lora is None:
        return shape.parameters
    attention = 4 * shape.width + 2 * shape.head_size * (shape.heads + shape.kv_heads)
    return config.model.lora.rank * shape.layers * (attention + 3 * (shape.width + shape.ffn))


def find_workload(config: Config, runs: Sequence[MeasuredRun]) -> tuple[Workload, str]:
    """A step's counts: those of measured episodes of the same environment, else what the limits allow."""
    rollout = config.rollout
    episodes = float(rollout.groups_per_step * rollout.group_size)
    env = run_settings(config, runs[0].shape).env
    alike = [run for run in runs if run.env == env]
    if alike:
        names = [field.name for field in dataclasses.fields(Workload)]
        per_episode = {
            name: statistics.fmean(getattr(run.work, name) / run.work.episodes for run in alike) for name in names
        }
        return Workload(**per_episode).scaled(episodes), f"measured episodes of {env} ({len(alike)} runs)"
    actions = rollout.max_turns * rollout.turn_tokens
    context = min(rollout.context_tokens or 2 * actions, 2 * actions)
    most = Workload(
        episodes=1.0,
        turns=float(rollout.max_turns),
        action_tokens=float(actions),
        prompt_tokens=float(context - actions) if context > actions else float(actions),
        read_tokens=float(max(context, actions)),
    )
    return most.scaled(episodes), f"the limits of the recipe, an upper bound: no run of {env} was measured"
