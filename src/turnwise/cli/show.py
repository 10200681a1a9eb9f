"""`turnwise show`: lists a run's trajectories, or prints one as a conversation with its rewards and advantages."""

import argparse
from typing import TYPE_CHECKING

from turnwise.cli.arguments import print_line, print_table

if TYPE_CHECKING:
    from turnwise.runs.directory import RunDirectory
    from turnwise.runs.episodes import EpisodeLine

HELP = "list a run's trajectories, or print one as a conversation"
EXPECTS = "one run directory and a trajectory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory, or the folder of gateway --save")
    parser.add_argument("trajectory", nargs="?", help="a name from the list, such as train-12/3/1")
    parser.add_argument("--step", type=int, help="those of one step")
    parser.add_argument("--stage", choices=("train", "evaluate", "untrained", "sft"), help="those of one stage")
    parser.add_argument("--task", help="those of one task, by its id")
    parser.add_argument("--env", metavar="NAME", help="those of one environment of a mixture")
    parser.add_argument("--failed", action="store_true", help="those that failed, with the reason")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--best", action="store_true", help="highest reward first")
    order.add_argument("--worst", action="store_true", help="lowest reward first")
    parser.add_argument("--number", type=int, default=20, metavar="N", help="how many to list (default: 20; 0: all)")


def run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from turnwise.runs.directory import open_stored
    from turnwise.runs.episodes import read_episode
    from turnwise.runs.transcript import print_transcript

    directory = open_stored(options.run)
    if options.trajectory is None:
        _list(directory, options)
    else:
        print_transcript(Console(), read_episode(directory, options.trajectory))
    return 0


def _list(directory: "RunDirectory", options: argparse.Namespace) -> None:
    from rich.markup import escape
    from rich.table import Table

    from turnwise.runs.episodes import list_episodes, trajectory_files

    problems: list[str] = []
    files = trajectory_files(directory, stage=options.stage, step=options.step)
    every = list(list_episodes(files, problems))
    found = [line for line in every if _matches(line, options)]
    if options.best or options.worst:
        # A failed episode was never scored, so it is neither.
        found = sorted((line for line in found if not line.failed), key=lambda one: one.reward, reverse=options.best)
    shown = found[: options.number] if options.number else found
    channels = list(dict.fromkeys(name for line in shown for name in line.rewards))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("trajectory", no_wrap=True)
    for title in ("reward", *channels, "success"):
        table.add_column(title, justify="right")
    for title in ("ended", "task"):
        table.add_column(title)
    for line in shown:
        ended = f"[red]{line.stop}[/] {escape(' '.join(line.failure.split()))}" if line.failed else line.stop
        success = "–" if line.success is None else f"{line.success:g}"
        paid = [f"{line.rewards[name]:+.3g}" if name in line.rewards else "" for name in channels]
        reward = "–" if line.failed else f"{line.reward:+.3g}"
        table.add_row(line.name, reward, *paid, success, ended, escape(line.task_id))
    if shown:
        print_table(table)
    print_line(f"{len(shown)} of {len(found)} that match, {len(every)} in all")
    if shown:
        print_line(f"read one with: turnwise show {directory.path} {shown[0].name}")
    for problem in problems:
        print_line(problem)


def _matches(line: "EpisodeLine", options: argparse.Namespace) -> bool:
    mixed = options.env is None or line.task_id.startswith(f"{options.env}/")
    return mixed and (not options.failed or line.failed) and options.task in (None, line.task_id)
