"""`turnwise check`: whether an environment keeps the contract of `check_env`."""

import argparse
import asyncio
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from turnwise.cli.arguments import add_env, find_env

if TYPE_CHECKING:
    from turnwise.envs import Env

HELP = "check an environment against the contract"
EXPECTS = "one environment and its arguments a=b"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_env(parser)
    parser.add_argument("--episodes", type=int, default=3, metavar="N", help="tasks to check on (default: 3)")


def run(options: argparse.Namespace) -> int:
    from turnwise.envs.mixture import Mixture

    env = find_env(options)
    if not isinstance(env, Mixture):
        return int(_check("", env, options.episodes))
    broken = [_check(f"{name}: ", entry.env, options.episodes) for name, entry in env.entries.items()]
    return int(any(broken))


def _check(prefix: str, env: "Env", episodes: int) -> bool:
    """Prints what an environment breaks of the contract, and returns whether it breaks anything."""
    from turnwise.envs import check_env

    findings = asyncio.run(check_env(env, episodes=episodes))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"[red]✗[/] {escape(prefix + finding)}")
    if not findings:
        console.print(f"[green]✓[/] {escape(prefix)}{type(env).__name__} keeps the contract")
    return bool(findings)
