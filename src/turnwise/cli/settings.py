"""`turnwise settings`: every key of a recipe with its type, default and meaning."""

import argparse

from rich.console import Console
from rich.text import Text

HELP = "show the settings of a recipe, one section, or one key"
EXPECTS = "at most one section or key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("section", nargs="?", default="", help="such as rollout, learner.optimizer or loss.clip_high")
    parser.add_argument("--markdown", action="store_true", help="print the page docs/settings.md")


def run(options: argparse.Namespace) -> int:
    from turnwise.reference.listing import list_settings
    from turnwise.reference.page import to_markdown

    console = Console(highlight=False, soft_wrap=True)
    if options.markdown:
        console.print(to_markdown(), markup=False, end="")
        return 0
    for one in list_settings(options.section):
        console.print(Text(one.key, style="bold"), Text(f"  {one.type}, default: {one.default}".replace("`", "")))
        console.print(Text(f"    {one.about}"), soft_wrap=False)
        known = f"; elsewhere: {', '.join(one.known_as)}" if one.known_as else ""
        console.print(Text(f"    read by {', '.join(one.read_by)}{known}", style="dim"))
    return 0
