"""`turnwise check`: whether an environment keeps the contract of `check_env`."""

import argparse
import asyncio

from rich.console import Console
from rich.markup import escape

from turnwise.cli.arguments import add_env, find_env

HELP = "check an environment against the contract"
EXPECTS = "one environment and its arguments a=b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    parser.add_argument("--episodes", type=int, default=3, metavar="N", help="tasks to check on (default: 3)")


def run(options: argparse.Namespace) -> int:
    from turnwise.envs import check_env

    env = find_env(options)
    findings = asyncio.run(check_env(env, episodes=options.episodes))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"[red]✗[/] {escape(finding)}")
    if not findings:
        console.print(f"[green]✓[/] {type(env).__name__} keeps the contract")
    return 1 if findings else 0
