"""Ctrl-C, SIGTERM and SIGHUP: a run finishes its step, saves, and ends with an exit code that says "resume me".

Invariant: a handler only sets a flag, which the trainer reads between steps. Only in stages that have nothing to save
(`at_once`) does it raise, and then a KeyboardInterrupt: any other exception inside environment code would count as a
failure of the episode.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from turnwise.errors import RunInterrupted

_DEFAULTS: Mapping[str, Callable[[int, FrameType | None], object] | signal.Handlers] = {
    "SIGINT": signal.default_int_handler,
    "SIGTERM": signal.SIG_DFL,
    "SIGHUP": signal.SIG_DFL,
}
"""What each signal does where the program has not changed it; only then is it handled here."""
_OUTPUTS = (1, 2)


class StopSignal:
    """Within it, the first signal asks for a stop and the second one is as it was: it ends the process, or raises
    KeyboardInterrupt (Ctrl-C).

    A signal that is ignored (`nohup`) or that the program handles itself stays as it is, as do all signals where this
    is not the main thread, which alone may handle them.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        """The signal that asks for a stop."""
        self._handled: list[signal.Signals] = []
        self._at_once = ""
        self._raised_in = ""
        """The stage that a signal has ended by an exception."""
        self._terminals = [output for output in _OUTPUTS if _is_terminal(output)]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            known = [getattr(signal, name) for name in _DEFAULTS if hasattr(signal, name)]
            self._handled = [number for number in known if signal.getsignal(number) is _DEFAULTS[number.name]]
        for number in self._handled:
            signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._restore()
        if self._raised_in and kind is not None and issubclass(kind, KeyboardInterrupt):
            raise self._interrupted(self._raised_in) from None

    @contextmanager
    def at_once(self, where: str) -> Iterator[None]:
        """Within it, a signal does not wait: `with stop.at_once("before training, with nothing to save"): ...`."""
        self.interrupt(where)
        self._at_once = where
        try:
            yield
        finally:
            self._at_once = ""
        self.interrupt(where)  # foreign code may have swallowed the exception

    def interrupt(self, where: str) -> None:
        """Ends the run if a signal has asked for it: `interrupt("after step 3, which is saved")`."""
        if self.received is not None:
            raise self._interrupted(where)

    def _interrupted(self, where: str) -> RunInterrupted:
        assert self.received is not None
        return RunInterrupted(f"{_name(self.received)}: stopped {where}")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._restore()  # before anything else: a second signal must not wait for Python
        self.received = signal.Signals(number)
        if self.received.name == "SIGHUP":
            self._leave_terminals()
        if self._at_once:
            self._raised_in = self._at_once
            raise KeyboardInterrupt
        line = f"{_name(self.received)}: this step is finished and saved, then training stops; again stops at once\n"
        with suppress(OSError):
            os.write(2, line.encode())  # not through a stream, which may be in the middle of a write

    def _restore(self) -> None:
        for number in self._handled:
            signal.signal(number, _DEFAULTS[number.name])
        self._handled = []

    def _leave_terminals(self) -> None:
        """A terminal that was closed refuses every line, which would end the run before it has saved."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in self._terminals:
            os.dup2(nowhere, output)
        os.close(nowhere)


def _name(number: signal.Signals) -> str:
    return "Ctrl-C" if number.name == "SIGINT" else number.name


def _is_terminal(output: int) -> bool:
    with suppress(OSError):
        return os.isatty(output)
    return False
