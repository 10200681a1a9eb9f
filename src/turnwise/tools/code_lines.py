"""Which line of the user's own code an error comes from, or a call hangs in: `support.py:41 in lookup`."""

import asyncio
import gc
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Line: TypeAlias = tuple[FrameType, int]

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def frame_of_thread(thread_id: int) -> FrameType | None:
    """What a thread runs now; None where there is no such thread.

    Without the garbage collector: one that CPython 3.11 runs within `sys._current_frames` may yield to a thread that
    starts another, and the two then wait for each other for ever (cpython issue 106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread_id)
    finally:
        if collects:
            gc.enable()


def line_of_error(error: BaseException) -> str:
    """Where it was raised: the innermost line of the user's own code, or else the innermost of all.

    Of an error that explains another, as a `RewardError` does, it is the line of the other; a sentence of ours about no
    line of the user's has none.
    """
    found = ""
    cause: BaseException | None = error
    while cause is not None:
        lines = list(_lines(cause.__traceback__))
        ours = type(cause).__module__.startswith("turnwise.")
        found = _own_line(lines) or found or ("" if ours else _show(lines[-1:]))
        cause = cause.__cause__
    return found


def line_of_thread(thread: threading.Thread) -> str:
    """Where a thread is now; empty where it is in no code of the user's."""
    frame = frame_of_thread(thread.ident or 0)
    return _own_line(_stack(frame))


def line_of_task(task: asyncio.Task[T]) -> str:
    """Where a task awaits something; empty where it is in no code of the user's."""
    awaited: object = task.get_coro()
    lines: list[Line] = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        lines.append((frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None)
    return _own_line(lines)


def line_of_stack(frame: FrameType | None) -> str:
    """Where a stack is, from its innermost frame: in the user's own code, or else anywhere."""
    lines = _stack(frame)
    return _own_line(lines) or _show(lines[-1:])


def _lines(trace: TracebackType | None) -> Iterator[Line]:
    yield from walk_tb(trace)


def _stack(frame: FrameType | None) -> list[Line]:
    lines: list[Line] = []
    while frame is not None:
        lines.append((frame, frame.f_lineno))
        frame = frame.f_back
    return lines[::-1]


def _own_line(lines: Sequence[Line]) -> str:
    return _show([line for line in lines if _is_users(line[0].f_code.co_filename)][-1:])


def _is_users(file: str) -> bool:
    return not file.startswith(("<", _OURS, *_LIBRARIES)) and "site-packages" not in file


def _show(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    frame, number = lines[-1]
    file = Path(frame.f_code.co_filename)
    if file.is_relative_to(here := Path.cwd()):
        file = file.relative_to(here)
    return f"{file}:{number} in {frame.f_code.co_name}"
