"""`turnwise gateway`: a model behind an OpenAI- and Anthropic-compatible endpoint; trajectories can be stored."""

import argparse

from turnwise.cli.arguments import add_overrides, print_line

HELP = "serve a run or model to any agent, over OpenAI's and Anthropic's APIs"
EXPECTS = "one run, checkpoint, recipe or model, and overrides a.b=c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", help="a run directory, one of its checkpoints, a recipe, or a model by name or folder")
    add_overrides(parser, "a.b=c", "such as evaluate.temperature=1 or rollout.turn_tokens=512")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8001, metavar="N", help="(default: 8001; 0 takes any free one)")
    parser.add_argument("--save", metavar="DIR", help="store the trajectory of each session in this folder")
    parser.add_argument(
        "--idle", type=float, default=600.0, metavar="S", help="end a session after so much silence (default: 600)"
    )
    parser.add_argument("--follow", action="store_true", help="load each newer checkpoint of a run that trains")


def run(options: argparse.Namespace) -> int:
    from turnwise.gateway.serving import run_gateway

    run_gateway(
        options.what,
        options.overrides,
        host=options.host,
        port=options.port,
        save=options.save,
        idle=options.idle,
        follow=options.follow,
        show=print_line,
    )
    return 0
