"""`turnwise plan`: what a recipe would cost on so many GPUs, and how to divide them."""

import argparse
from typing import TYPE_CHECKING

from turnwise.cli.arguments import add_overrides, print_line, print_table

if TYPE_CHECKING:
    from turnwise.planning.measured import MeasuredRun
    from turnwise.planning.recipe import Plan
    from turnwise.planning.simulation import Simulated

HELP = "predict a recipe's step time, memory and best division of GPUs"
EXPECTS = "one recipe and overrides"
_GB = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a shipped recipe's name or a YAML file")
    add_overrides(parser, "a.b=c", "settings that replace the recipe's")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs to divide (default: 8)")
    parser.add_argument("--gpu", default="h200", help="their kind (default: h200, of which runs were measured)")
    parser.add_argument("--run", metavar="RUN", help="calibrate by a run of yours, made on the machine in question")
    parser.add_argument("--probe", type=int, metavar="N", help="calibrate by N steps of the recipe, here and now")
    parser.add_argument(
        "--simulate", metavar="N,N", help="run the scheduler with so many workers that only sleep: 8,64,512"
    )


def run(options: argparse.Namespace) -> int:
    from turnwise.config import load_config
    from turnwise.errors import ConfigError
    from turnwise.planning.recipe import make_plan

    if options.gpus < 1:
        raise ConfigError("--gpus: give 1 or more")
    config = load_config(options.recipe, options.overrides)
    plan = make_plan(config, gpus=options.gpus, gpu=options.gpu, calibration=_calibrate(options))
    _print_plan(plan, options.gpus)
    if options.simulate:
        from turnwise.planning.simulation import simulate_plan

        workers = [_number(part) for part in options.simulate.split(",")]
        print_simulation(simulate_plan(config, plan, workers))
    return 0


def _number(text: str) -> int:
    from turnwise.errors import ConfigError

    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"--simulate: '{text}' is not a number of workers: write 8,64,512")
    return int(text)


def _calibrate(options: argparse.Namespace) -> "MeasuredRun | None":
    if options.run is None and options.probe is None:
        return None
    from turnwise.config import load_config, read_run_config
    from turnwise.planning.measured import measure_run, read_table, run_settings
    from turnwise.planning.probe import probe
    from turnwise.planning.shape import find_shape

    if options.probe is not None:
        return probe(load_config(options.recipe, options.overrides), steps=options.probe)
    config = read_run_config(options.run)
    shape = find_shape(config.model, {run.model: run.shape for run in read_table()})
    return measure_run(options.run, run_settings(config, shape), device="its own")


def _print_plan(plan: "Plan", gpus: int) -> None:
    from dataclasses import asdict

    work, memory = plan.workload, plan.memory
    print_line(
        f"model: {plan.shape.parameters / 1e6:,.0f}M parameters, {plan.shape.layers} layers, {plan.shape.width} wide"
    )
    print_line(
        f"a step: {work.episodes:,.0f} episodes, {work.turns:,.0f} turns, {work.action_tokens:,.0f} tokens sampled, "
        f"{work.prompt_tokens:,.0f} read by the engine, {work.read_tokens:,.0f} by the learner; "
        f"from {plan.workload_from}"
    )
    print_line(_describe_error(plan))
    parts = ", ".join(f"{name} {value:.2f}" for name, value in plan.parts.items() if name != "step" and value)
    print_line(f"one GPU: {_seconds(plan, plan.parts['step'])} a step ({parts})")
    kept = ", ".join(f"{name} {size / _GB:.1f}" for name, size in asdict(memory).items() if size)
    print_line(f"memory: a learner {memory.total / _GB:.1f} GB ({kept}), an engine {plan.engine / _GB:.1f} GB")
    if plan.calibrated_by is None:
        room = plan.hardware.memory
        fits = "fits" if max(memory.total, plan.engine) < 0.9 * room else "may not fit"
        print_line(f"{fits} {plan.hardware.name}: {room / _GB:.0f} GB, of which a tenth is left for fragments")
    if gpus > 1:
        _print_splits(plan, gpus)


def _print_splits(plan: "Plan", gpus: int) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("sampling", "learning", "sampling s", "learning s", "synchronous s", "asynchronous s", ""):
        table.add_column(title, justify="right" if title else "left")
    best = {
        "best synchronous": min(plan.splits, key=lambda split: split.synchronous),
        "best asynchronous": min(plan.splits, key=lambda split: split.asynchronous),
    }
    for split in plan.splits:
        times = (split.sampling, split.learning, split.synchronous, split.asynchronous)
        table.add_row(
            *(str(split.sampling_gpus), str(split.learning_gpus)),
            *(f"{seconds:.2f}" for seconds in times),
            ", ".join(word for word, chosen in best.items() if split is chosen),
        )
    print_table(table)
    alone = _seconds(plan, plan.shared.synchronous)
    print_line(f"all {gpus} learning, and one of them sampling before that (torchrun): {alone} a step")


def _describe_error(plan: "Plan") -> str:
    if plan.errors is None:
        return f"calibrated by {plan.calibrated_by}: other shapes and more GPUs are extrapolated from it, unchecked"
    runs = ", ".join(f"{name} {error:+.0%}" for name, error in plan.errors.by_run.items())
    return (
        f"error: {plan.errors.mean:.0%} on average, {plan.errors.worst:.0%} at most, of {len(plan.errors.by_run)} runs "
        f"on one {plan.hardware.name}, each predicted from the others ({runs}); links between GPUs were not measured"
    )


def _seconds(plan: "Plan", seconds: float) -> str:
    return f"{seconds:.2f} s" + (f" ± {seconds * plan.errors.mean:.2f}" if plan.errors is not None else "")


def print_simulation(results: "list[Simulated]") -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("workers", "mode", "step s", "ideal s", "share of ideal", "limited by"):
        table.add_column(title, justify="left" if title in ("mode", "limited by") else "right")
    for one in results:
        limits = ", ".join(f"{name} {share:.0%}" for name, share in one.limits.items() if share >= 0.005)
        table.add_row(
            *(f"{one.workers}", one.mode, f"{one.step_seconds:.2f}", f"{one.ideal_seconds:.2f}"),
            *(f"{one.share:.1%}", limits),
        )
    print_table(table)
