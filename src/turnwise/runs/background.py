"""Files written behind the run: a thread takes them in order, while the run goes on.

Invariant: what was submitted before `flush` is on the disk after it; an error of a write is raised to the run, once, by
the next call. At most `_WAITING` writes wait: a run that is faster than its disk waits for it.
"""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_WAITING = 2
"""Each holds the trajectories of a step."""


class BackgroundWriter:
    """`with BackgroundWriter() as writer: writer.submit(partial(write_trajectories, ...))`; its end is a flush."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(_WAITING)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.join()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if error is None:  # an error of the run itself comes first
            self.check()

    def submit(self, write: Callable[[], None]) -> None:
        """Runs `write` in the thread, after those submitted before it."""
        self.check()
        if self._thread is None:
            # A daemon: a disk that hangs must not keep a process from ending that has been told to end twice.
            self._thread = threading.Thread(target=self._work, name="turnwise-writer", daemon=True)
            self._thread.start()
        self._jobs.put(write)

    def check(self) -> None:
        """Raises the error of a write that failed; waits for none."""
        if self._error is not None:  # None is not written over one that the thread has just met
            error, self._error = self._error, None
            raise error

    def flush(self) -> None:
        """Waits until everything submitted is written."""
        self._jobs.join()
        self.check()

    def _work(self) -> None:
        while (write := self._jobs.get()) is not None:
            try:
                if self._error is None:  # what follows a failed write would pretend that nothing is missing
                    write()
            except BaseException as error:  # noqa: BLE001 - raised to the run
                self._error = error
            finally:
                del write  # else what it holds, such as a copy of the model, would stay until the next one
                self._jobs.task_done()
        self._jobs.task_done()
