"""`turnwise eval`: evaluates a run, a checkpoint, any model, or one behind an API."""

import argparse
from pathlib import Path

from rich.console import Console

from turnwise.cli.arguments import add_overrides, print_line
from turnwise.errors import ConfigError

HELP = "evaluate a run, a checkpoint, any model, or one behind an API"
EXPECTS = "one run directory, checkpoint or recipe, and overrides a.b=c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", help="a run directory, one of its checkpoints, or a recipe")
    add_overrides(parser, "a.b=c", "such as evaluate.tasks=1000")
    parser.add_argument(
        "--trust", action="store_true", help="run Python that the run's config names, though it was not made here"
    )
    parser.add_argument("--model", metavar="NAME", help="a folder or a model on the hub, in place of the recipe's")
    parser.add_argument("--endpoint", metavar="URL", help="an OpenAI-compatible API whose model plays instead")
    parser.add_argument("--api-model", metavar="NAME", help="which of the endpoint's models")
    parser.add_argument("--key-env", metavar="VARIABLE", help="the environment variable with the endpoint's key")
    parser.add_argument(
        "--api", action="append", default=[], metavar="a=b", help="such as concurrency=4 or options.seed=null"
    )
    parser.add_argument("--save", metavar="FILE", help="write the trajectories to a Parquet file")
    parser.add_argument("--answers", metavar="FILE", help="write the answer to each task as JSON lines")
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON")


def run(options: argparse.Namespace) -> int:
    from turnwise.agents.endpoint import endpoint_of, read_endpoint
    from turnwise.engines.settings import OpenAIEngineSettings
    from turnwise.targets import load_target

    endpoint = read_endpoint(options.endpoint, options.api_model, key_env=options.key_env, settings=options.api)
    if endpoint and options.model:
        raise ConfigError("--model and --endpoint both name who plays: give one of them")
    config = load_target(
        options.what, options.overrides, model=options.model, local=endpoint is None, trust=options.trust
    )
    weights = options.model or Path(options.what).is_dir()  # a recipe has none; a run's are loaded into the server
    if endpoint is None and not weights and isinstance(config.engine, OpenAIEngineSettings):
        endpoint = endpoint_of(config.engine)
    from turnwise.agents import ApiAgent, Endpoint  # a mistake need not wait for these
    from turnwise.evaluation.report import show_evaluation, to_json
    from turnwise.runs import make_display
    from turnwise.training.evaluate import run_evaluation

    agent = ApiAgent(endpoint=Endpoint(endpoint), decoding=config.evaluate) if endpoint else None
    with make_display(Console(stderr=options.json)) as display:
        result = run_evaluation(config, display, agent=agent, save=options.save, answers=options.answers)
    name, asked = endpoint.model if endpoint else config.model.name, config.evaluate
    if options.json:
        about = {"model": name, "env": config.env.name, "split": asked.asked_split, "hold_out": asked.hold_out}
        decoded = {"temperature": asked.temperature, "samples_per_task": asked.samples_per_task, "seed": config.seed}
        print_line(to_json(result, {**about, **decoded}))
    else:
        show_evaluation(Console(), f"{name}, on tasks held out of training" if asked.hold_out else name, result)
    return 0
