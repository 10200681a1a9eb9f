"""`turnwise doctor`: what is wrong with a recipe before it is trained, or with a run, and what to do about it."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from turnwise.cli.arguments import add_overrides, print_line

if TYPE_CHECKING:
    from turnwise.doctor.examination import Examination

HELP = "examine a recipe before it is trained, or a run afterwards"
EXPECTS = "one recipe or run directory, and overrides a.b=c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", help="a packaged recipe, a YAML file, or a run directory")
    add_overrides(parser, "a.b=c", "settings that replace the recipe's, or the run's where its checkpoint is probed")
    parser.add_argument("--run", metavar="DIR", help="where the recipe is going to be trained (default: runs/RECIPE)")
    parser.add_argument("--files", action="store_true", help="read the files of a run alone, without its model")
    parser.add_argument(
        "--trust", action="store_true", help="run Python that the run's config names, though it was not made here"
    )
    parser.add_argument("--json", action="store_true", help="print the examination as JSON")


def run(options: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(line: str) -> None:
        console.print(f"[dim]{escape(line)} ...[/]")

    if Path(options.what).is_dir():
        from turnwise.doctor.postmortem import examine_run

        examination = examine_run(
            Path(options.what), options.overrides, probe=not options.files, trust=options.trust, say=say
        )
    else:
        from turnwise.doctor.recipe import examine_named

        folder = Path(options.run) if options.run else Path("runs") / Path(options.what).stem
        examination = examine_named(options.what, options.overrides, folder=folder, say=say)
    if options.json:
        print_line(json.dumps(examination.to_json(), ensure_ascii=False))
    else:
        _show(examination)
    return int(not examination.sound)


def _show(examination: "Examination") -> None:
    console = Console(highlight=False, soft_wrap=True)
    _show_checks(examination, console)
    if examination.probed is not None:
        console.print("The newest checkpoint, probed as a recipe is:")
        _show_checks(examination.probed, console)
    found = [*examination.diagnoses, *(examination.probed.diagnoses if examination.probed else ())]
    alarms = sum(one.severity == "alarm" for one in found)
    signs = len(found) - alarms
    console.print(f"{escape(examination.subject)}: {alarms} alarms, {signs} signs")


def _show_checks(examination: "Examination", console: Console) -> None:
    marks = {"ok": "[green]✓[/]", "found": "[red]✗[/]", "skipped": "[dim]–[/]"}
    for check in examination.checks:
        status = examination.status(check)
        reason = (
            f" [dim]({escape(examination.skipped.get(check.name, 'not reached'))})[/]" if status == "skipped" else ""
        )
        console.print(f"{marks[status]} {check.name}: {escape(check.sentence)}{reason}")
        for name, diagnosis in examination.found:
            if name == check.name:
                colour = "red" if diagnosis.severity == "alarm" else "yellow"
                console.print(f"    [{colour}]{diagnosis.kind}[/] {escape(diagnosis.sentence)}")
    for note in examination.notes:
        console.print(f"[dim]{escape(note)}[/]")
