"""The command line: one module a command."""

from turnwise.cli.main import main

__all__ = ["main"]
