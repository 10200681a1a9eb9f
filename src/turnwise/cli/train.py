"""`turnwise train`: trains an agent by a recipe."""

import argparse
import os
from pathlib import Path

from turnwise.cli.arguments import add_overrides, print_line

HELP = "train an agent by a recipe"
EXPECTS = "one recipe and overrides a.b=c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a packaged recipe, such as encyclopedia-grpo, or a YAML file")
    add_overrides(parser, "a.b=c", "settings that replace the recipe's")
    parser.add_argument("--run", metavar="DIR", help="the run directory (default: runs/RECIPE)")
    parser.add_argument(
        "--chaos", metavar="SHARES", help="plant faults into training: hang=.05,crash=.05,kill=.01 (kill: env.workers)"
    )
    parser.add_argument("--explain", action="store_true", help="print every setting and where it comes from, and stop")
    parser.add_argument("--resume", action="store_true", help="continue from the run's last checkpoint")
    parser.add_argument(  # an option of its own: with an optional value, `--resume RECIPE` would lose its recipe
        "--resume=auto", dest="resume", action="store_const", const="auto", help="start, or continue what was started"
    )


def run(options: argparse.Namespace) -> int:
    if options.chaos:
        from turnwise.envs.chaos import parse_chaos

        options.overrides = [*options.overrides, *parse_chaos(options.chaos)]
    if options.explain:
        from turnwise.reference.origins import explain_recipe, show_explained

        for line in show_explained(explain_recipe(options.recipe, options.overrides)):
            print_line(line)
        return 0
    from turnwise.compute.garbage import without_gc
    from turnwise.ledger import Ledger

    ledger = Ledger()
    with ledger.spend("prepare"), without_gc():  # importing torch is time that the run's ledger accounts for
        from turnwise.config import load_config

        known = None
        if "RANK" not in os.environ:  # a mistake need not wait for torch; under torchrun, rank 0 alone tells it
            known = load_config(options.recipe, options.overrides)
        from turnwise.learner.group import LearnerGroup
        from turnwise.runs import RunDirectory
        from turnwise.training.launch import launch
        from turnwise.training.trainer import run_training

    folder = options.run or Path("runs") / Path(options.recipe).stem

    def train(learners: LearnerGroup) -> RunDirectory:
        with ledger.spend("prepare"):
            config = load_config(options.recipe, options.overrides)
        return run_training(config, folder, resume=options.resume, ledger=ledger, learners=learners)

    directory = launch(train, known)
    if directory is None:  # a process that followed; rank 0 prints where the run is
        return 0
    print_line(f"The report is in {directory.path / 'report.html'}")
    print_line(f"The run is in {directory.path}; evaluate it with: turnwise eval {directory.path}")
    return 0
