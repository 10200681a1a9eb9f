"""What several commands share: overrides anywhere on the line, environments by name, lines that can be copied."""

import argparse
from typing import TYPE_CHECKING, Protocol

from rich.console import Console

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from turnwise.envs import Env


class Command(Protocol):
    """What `main` needs of a command's module."""

    HELP: str
    """One line of `turnwise --help`."""
    EXPECTS: str
    """What the command takes, for an argument too many: `one run directory`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """Does the work and returns the exit code."""
        ...


def add_overrides(parser: argparse.ArgumentParser, metavar: str, about: str) -> None:
    """Lets a command take settings, before and after its options."""
    parser.add_argument("overrides", nargs="*", metavar=metavar, help=about)


def accept_rest(options: argparse.Namespace, rest: list[str]) -> None:
    """Takes positionals that follow an option as overrides, which argparse alone does not; refuses them elsewhere."""
    if not rest:
        return
    if "overrides" not in options:
        raise ConfigError(f"unexpected argument '{rest[0]}': expected {options.command.EXPECTS}")
    options.overrides += rest


def add_env(parser: argparse.ArgumentParser) -> None:
    """Lets a command take an environment with its arguments."""
    parser.add_argument("env", help="a built-in name, module:Class, file.py:Class, or a recipe")
    add_overrides(parser, "a=b", "arguments of the environment; of a mixture, NAME.args.a=b")


def find_env(options: argparse.Namespace) -> "Env":
    """The environment that `add_env`'s arguments name; that of a recipe has the recipe's arguments."""
    from turnwise.envs.registry import EnvSettings, MixtureSettings, make_env
    from turnwise.recipes import packaged_recipes, read_recipe
    from turnwise.settings import parse_settings
    from turnwise.sources import claim_names

    data: dict[str, object] = {"name": options.env}
    if options.env.endswith((".yaml", ".yml")) or options.env in packaged_recipes():
        section = read_recipe(options.env).get("env")
        if section is not None:
            data = dict(section) if isinstance(section, dict) else {"name": section}
    claim_names(data)
    if "mixture" in data:
        overrides = [f"mixture.{override}" for override in options.overrides]
        return make_env(parse_settings(MixtureSettings, data, overrides=overrides, source=options.env))
    overrides = [f"args.{override}" for override in options.overrides]
    return make_env(parse_settings(EnvSettings, data, overrides=overrides, source=options.env))


def print_table(table: "Table") -> None:
    """A table as wide as the terminal; in a pipe, which has no width, as wide as it is."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(80, Console(width=10_000).measure(table).maximum))
    console.print(table)


def print_line(text: str) -> None:
    """One line, however long: a command that is shown must be one that can be copied."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
