"""SIGTERM and SIGHUP: a run finishes its step, saves, and ends with an exit code that says "resume me".

Invariant: a handler only sets a flag, which the trainer reads between steps. It never raises: an exception inside
environment code would count as a failure of the episode.
"""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Self

from turnwise.errors import RunInterrupted

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_OUTPUTS = (1, 2)


class StopSignal:
    """Within it, the first signal asks for a stop and the second ends the process at once.

    A signal that is ignored (`nohup`) or that the program handles itself stays as it is, as do all signals where this
    is not the main thread, which alone may handle them.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The signal that asks for a stop."""
        self._handled: list[signal.Signals] = []
        self._terminals = [output for output in _OUTPUTS if _is_terminal(output)]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handled = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
        for number in self._handled:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, *raised: object) -> None:
        self._restore()

    def interrupt(self, where: str) -> None:
        """Ends the run if a signal has asked for it: `interrupt("after step 3, which is saved")`."""
        if self.received is not None:
            raise RunInterrupted(f"{self.received.name}: stopped {where}")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._restore()  # before anything else: a second signal must not wait for Python
        self.received = signal.Signals(number)
        if self.received.name == "SIGHUP":
            self._leave_terminals()
        line = f"{self.received.name}: this step is finished and saved, then training stops; again stops at once\n"
        with suppress(OSError):
            os.write(2, line.encode())  # not through a stream, which may be in the middle of a write

    def _restore(self) -> None:
        for number in self._handled:
            signal.signal(number, signal.SIG_DFL)
        self._handled = []

    def _leave_terminals(self) -> None:
        """A terminal that was closed refuses every line, which would end the run before it has saved."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in self._terminals:
            os.dup2(nowhere, output)
        os.close(nowhere)


def _is_terminal(output: int) -> bool:
    with suppress(OSError):
        return os.isatty(output)
    return False
