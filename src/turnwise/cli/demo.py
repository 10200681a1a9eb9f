"""`turnwise demo`: trains the embedded agent and compares it with its baselines."""

import argparse
from pathlib import Path

from rich.console import Console

from turnwise.cli.arguments import add_overrides

HELP = "train the embedded agent and compare it with its baselines"
EXPECTS = "overrides a.b=c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "a.b=c", "such as seed=1")
    parser.add_argument("--recipe", default="encyclopedia-grpo", help="(default: encyclopedia-grpo)")
    parser.add_argument(
        "--run", default="runs/demo", metavar="DIR", help="the run directory; an earlier demo there is renamed"
    )


def run(options: argparse.Namespace) -> int:
    from turnwise.config import load_config

    config = load_config(options.recipe, options.overrides)  # a mistake need not wait for torch
    from turnwise.cli.comparison import run_demo

    run_demo(config, Path(options.run), Console())
    return 0
