"""The `python` tool: code that the model wrote, run in a sandbox, and what it printed told back.

Invariant: every way to fail is an observation in words: an exception, a loop, too much memory or output, a crash. What
holds the code, and how well on this machine, is the matter of `sandbox.py`.
"""

import dataclasses
import signal
from dataclasses import dataclass

from turnwise.tools.sandbox.process import Ending, Outcome, PythonSettings, Sandbox
from turnwise.tools.tool import Tool, check_limits, tool
from turnwise.types import ToolResult

__all__ = ["PythonSettings", "Sandbox", "python_tool", "show_outcome"]

_PATIENCE = 3600.0
"""Seconds that a call may wait for its turn; the code's own time is the sandbox's to limit."""
_NOTE_CHARS = 60


def python_tool(sandbox: PythonSettings | Sandbox, *, max_chars: int = 4000) -> Tool:
    """A tool named `python` that shows what code prints and the value of its last expression.

    Args:
        sandbox: Its limits; or a sandbox, whose `protections` and `endings` its owner may read.
        max_chars: Longer output loses its middle, with a note.
    """
    check_limits("python", _PATIENCE, max_chars)
    runs_in = sandbox if isinstance(sandbox, Sandbox) else Sandbox(sandbox)
    bound = _Python(sandbox=runs_in, max_chars=max_chars).python
    return dataclasses.replace(bound, timeout=_PATIENCE + runs_in.settings.seconds, max_chars=max_chars)


def show_outcome(outcome: Outcome, settings: PythonSettings, max_chars: int) -> str:
    """What the agent reads: the output, and a last line where the code was stopped or crashed."""
    end = _say_ending(outcome, settings)
    output = outcome.output.rstrip()
    if not output and not end:
        return "(no output; print what you want to see)"
    room = max(max_chars - len(end) - 1, 0)
    return "\n".join(part for part in (_shorten(output, room), end) if part)


# A class, so that the schema is made once and not for every sandbox.
@dataclass(frozen=True, slots=True, kw_only=True)
class _Python:
    sandbox: Sandbox
    max_chars: int

    @tool
    async def python(self, code: str) -> ToolResult:
        """Runs Python code in a fresh process and shows what it prints and the value of its last expression.

        Only the standard library is there: no network, no input, no files but the code's own. Nothing is kept from one
        call to the next.

        Args:
            code: The whole program.
        """
        outcome = await self.sandbox.run(code)
        content = show_outcome(outcome, self.sandbox.settings, self.max_chars)
        return ToolResult(content=content, ok=outcome.ending is Ending.DONE)


def _say_ending(outcome: Outcome, settings: PythonSettings) -> str:
    match outcome.ending:
        case Ending.DONE | Ending.RAISED:
            return ""
        case Ending.TIME:
            return f"Stopped after {settings.seconds:g} s; the code must end sooner."
        case Ending.MEMORY:
            return f"Stopped: the code used more than {settings.memory_mb} MB of memory."
        case Ending.OUTPUT:
            return f"Stopped: the code printed more than {settings.output_kb} kB."
        case Ending.CRASHED if outcome.number < 0:
            number = -outcome.number
            return f"Crashed: {signal.Signals(number).name} ({signal.strsignal(number)})."
        case Ending.CRASHED:
            return f"The code ended its process with status {outcome.number}."


def _shorten(text: str, room: int) -> str:
    """At most `room` characters: the beginning, a note, and the end, where results and tracebacks are."""
    if len(text) <= room:
        return text
    kept = max(room - _NOTE_CHARS, 0)
    tail = kept // 2
    note = f"[... {len(text) - kept} characters are not shown ...]"
    return f"{text[: kept - tail]}\n{note}\n{text[len(text) - tail :]}"
