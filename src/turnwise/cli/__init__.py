"""The command line: one module a command, each with its arguments and what it runs; `main` parses and dispatches.

Invariant: a module here imports nothing heavy before its command runs, so that `turnwise --help` answers at once.
"""
