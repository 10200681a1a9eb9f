"""`turnwise export`: the model of a run as one folder of safetensors."""

import argparse

from turnwise.cli.arguments import print_line

HELP = "write a run's model as one folder of safetensors"
EXPECTS = "one run directory and one new folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory")
    parser.add_argument("folder", help="a folder that is new or empty")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default: the newest")


def run(options: argparse.Namespace) -> int:
    from turnwise.training.export import export_model

    checkpoint = export_model(options.run, options.folder, step=options.step)
    print_line(f"{options.folder}: the model of {checkpoint.name}, for transformers, vLLM and `model.name`")
    return 0
