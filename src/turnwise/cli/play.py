"""`turnwise play`: an episode of an environment, played by you in the terminal."""

import argparse

from turnwise.cli.arguments import add_env, find_env

HELP = "play an environment yourself"
EXPECTS = "one environment and its arguments a=b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    parser.add_argument("--task", type=int, default=0, metavar="N", help="which task of the split (default: 0)")
    parser.add_argument("--split", default="train", help="(default: train)")
    parser.add_argument("--episode-seed", type=int, default=0, metavar="SEED", help="seed of the episode (default: 0)")


def run(options: argparse.Namespace) -> int:
    from turnwise.rollout.play import play_in_terminal

    play_in_terminal(find_env(options), task_index=options.task, split=options.split, episode_seed=options.episode_seed)
    return 0
