"""The child's side of `child.py`: serves the methods of one object over a socket, one call at a time, as JSON.

    python -m turnwise.envs.adapters.serve MODULE:CLASS SETTINGS SECONDS DESCRIPTOR

Invariant: a call that outlives its deadline ends this process even where its parent is gone and native code holds the
interpreter's lock; what the package prints goes nowhere.
"""

import faulthandler
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from turnwise.types import Json

_GRACE = 5.0
"""Seconds by which a call may outlast its parent's patience: the parent kills, unless it is gone itself."""


def main() -> None:
    """Makes the object, greets with `null` or an error, and answers until the other end closes."""
    target, settings, seconds, descriptor = sys.argv[1:]
    connection = Connection(int(descriptor))
    module, _, name = target.partition(":")
    made: list[object] = []

    def make() -> None:
        made.append(getattr(importlib.import_module(module), name)(**json.loads(settings)))

    connection.send_bytes(_answer(make))
    while made:
        try:
            method, args = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            break
        faulthandler.dump_traceback_later(float(seconds) + _GRACE, exit=True)
        reply = _answer(getattr(made[0], method), *args)
        faulthandler.cancel_dump_traceback_later()
        try:
            connection.send_bytes(reply)
        except OSError:  # the trainer is gone, as above
            break
    os._exit(0)  # no thread of the package may keep it


def _answer(method: Callable[..., Json], *args: Json) -> bytes:
    try:
        return json.dumps({"value": method(*args)}).encode()
    except BaseException as error:  # noqa: BLE001 - the caller reads whatever the package raises, exits included
        return json.dumps({"error": _words(error)}).encode()


def _words(error: BaseException) -> str:
    """`KeyError: 'kitchen' (textworld.py:88 in step)`, in one line."""
    words = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return words[:500] + where


if __name__ == "__main__":
    main()
