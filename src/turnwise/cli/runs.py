"""`turnwise runs`: lists the runs of a folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.cli.arguments import print_line, print_table
from turnwise.errors import RunError

if TYPE_CHECKING:
    from turnwise.runs.listing import RunLine

HELP = "list runs: how far, how good, how old"
EXPECTS = "one folder"

_STYLES = {"finished": "green", "training": "cyan", "stopped": "yellow", "unreadable": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", help="a folder with runs in it (default: runs)")
    parser.add_argument("--sort", choices=("name", "age", "best"), default="name", help="the order (default: name)")


def run(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from turnwise.runs.listing import describe_run, find_runs, show_age

    folder = Path(options.folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; `turnwise train` writes to runs/ unless --run says otherwise")
    lines = _sort([describe_run(path) for path in find_runs(folder)], options.sort)
    if not lines:
        raise RunError(f"{folder}: no runs in it; make one with turnwise train")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold")
    for title in ("status", "steps", "best success", "last", "environment", "credit", "age"):
        table.add_column(title, justify="right" if title in ("steps", "best success", "last", "age") else "left")
    for line in lines:
        best = "–" if line.best is None else f"{line.best:.3f} at {line.best_step}"
        table.add_row(
            escape(str(line.path)),
            f"[{_STYLES.get(line.status, 'dim')}]{line.status}[/]",
            f"{line.step}/{'?' if line.steps is None else line.steps}",
            best,
            "–" if line.last is None else f"{line.last:.3f}",
            escape(line.environment),
            escape(line.estimator),
            show_age(line.age),
        )
    print_table(table)
    for line in lines:
        if line.problem:
            print_line(f"{line.path}: {line.problem}")
    return 0


def _sort(lines: "list[RunLine]", by: str) -> "list[RunLine]":
    if by == "age":
        return sorted(lines, key=lambda line: line.age)
    if by == "best":
        return sorted(lines, key=lambda line: -1.0 if line.best is None else line.best, reverse=True)
    return lines
