"""Parses the command line and runs one command: `turnwise train | eval | report | play | check | demo | recipes | ...`.

Invariant: a user's mistake ends in one line on standard error and exit code 2, a run that a signal stopped in exit code
75 (resume it); a traceback is always a bug of ours.
"""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from turnwise import __version__
from turnwise.cli import (
    bench,
    check,
    demo,
    doctor,
    evaluate,
    export,
    gateway,
    new,
    plan,
    play,
    questions,
    recipes,
    replay,
    report,
    rescore,
    runs,
    serve_mcp,
    serve_openenv,
    serve_search,
    settings,
    show,
    studio,
    train,
)
from turnwise.cli.arguments import Command, accept_rest
from turnwise.compute.process import configure_process
from turnwise.errors import RunInterrupted, TurnwiseError
from turnwise.runs.files import describe_disk_error
from turnwise.spelling import suggest

COMMANDS: Mapping[str, Command] = {
    "new": new,
    "train": train,
    "eval": evaluate,
    "runs": runs,
    "show": show,
    "replay": replay,
    "rescore": rescore,
    "studio": studio,
    "report": report,
    "export": export,
    "play": play,
    "check": check,
    "doctor": doctor,
    "plan": plan,
    "demo": demo,
    "recipes": recipes,
    "settings": settings,
    "bench": bench,
    "questions": questions,
    "serve-search": serve_search,
    "serve-mcp": serve_mcp,
    "serve-openenv": serve_openenv,
    "gateway": gateway,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        known = suggest(arguments[0], COMMANDS) or f"; there are: {', '.join(COMMANDS)}"
        return _refuse(f"there is no command '{arguments[0]}'{known}")
    parser = make_parser()
    options, rest = parser.parse_known_args(arguments)
    if unknown := [argument for argument in rest if argument.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    configure_process()
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False)],
    )
    command: Command = options.command
    try:
        accept_rest(options, rest)
        return command.run(options)
    except TurnwiseError as error:
        return _refuse(str(error))
    except OSError as error:
        if not (reason := describe_disk_error(error)):
            raise
        return _refuse(f"{error.filename or 'the disk'}: {reason}")
    except RunInterrupted as interrupted:
        line = f"{escape(str(interrupted))}; continue with --resume"
        Console(stderr=True, highlight=False, soft_wrap=True).print(line)
        return RunInterrupted.EXIT_CODE
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; a training run continues from its last checkpoint with --resume")
        return 130


def _refuse(mistake: str) -> int:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]error:[/] {escape(mistake)}")
    return 2


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; it imports none of what they run."""
    parser = argparse.ArgumentParser(prog="turnwise", description="Train LLM agents over many turns.")
    parser.add_argument("--version", action="version", version=f"turnwise {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.HELP)
        command.add_arguments(one)
        one.set_defaults(command=command)
    return parser
