"""What tools raised, for a check that asks: the model reads an exception as text, so nothing else sees it.

Invariant: a call that was refused for its arguments, or timed out, is not recorded; outside `recording_calls` none is.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

CallLog: TypeAlias = dict[str, list[BaseException | None]]
"""By the tool's name, what each call raised; None for a call that returned."""

_log: contextvars.ContextVar[CallLog | None] = contextvars.ContextVar("log", default=None)


@contextlib.contextmanager
def recording_calls() -> Iterator[CallLog]:
    """While it is open, calls of tools in this process are recorded: `with recording_calls() as calls: ...`."""
    calls: CallLog = {}
    token = _log.set(calls)
    try:
        yield calls
    finally:
        _log.reset(token)


def record_call(tool: str, error: BaseException | None) -> None:
    calls = _log.get()
    if calls is not None:
        calls.setdefault(tool, []).append(error)


def always_raised(calls: Mapping[str, Sequence[BaseException | None]]) -> dict[str, BaseException]:
    """The tools of which no call returned, each with what its first call raised."""
    return {tool: errors[0] for tool, errors in calls.items() if errors[0] is not None and None not in errors}
