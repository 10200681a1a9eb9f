"""`turnwise recipes`: the recipes that come with the package, each with its first sentence."""

import argparse

from rich.console import Console
from rich.table import Table
from rich.text import Text

HELP = "list the recipes that come with the package"
EXPECTS = "no arguments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> int:
    from turnwise.recipes import describe_recipe, group_recipes

    console = Console()
    groups = group_recipes()
    width = max(len(name) for recipes in groups.values() for name in recipes)
    for title, recipes in groups.items():
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=width + 2, no_wrap=True)
        for name, path in recipes.items():
            table.add_row(Text(f"  {name}", style="bold"), Text(describe_recipe(path)))
        console.print(Text(title, style="underline"))
        console.print(table)
    console.print("\nTrain by one: turnwise train NAME a.b=c --run DIR", highlight=False, markup=False)
    return 0
