"""`turnwise report`: writes a run's report.html and prints its ledger."""

import argparse

from rich.console import Console

from turnwise.cli.arguments import print_line

HELP = "write a run's report.html and print where its time went"
EXPECTS = "one run directory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run directory, of a run that is finished or still training")


def run(options: argparse.Namespace) -> int:
    from turnwise.runs import RunDirectory
    from turnwise.runs.ledger.totals import read_totals, show_totals
    from turnwise.runs.report.writer import read_view, write_report

    directory = RunDirectory.open(options.run)
    path = write_report(directory)
    show_totals(Console(), read_totals(read_view(directory).records))
    print_line(f"The report is in {path}")
    return 0
