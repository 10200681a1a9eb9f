"""The `python` tool: runs code that the model wrote in a sandbox and shows the model what it printed.

Invariant: every way to fail is an observation in words: an exception, a loop, too much memory or output, a crash. How
the code is isolated is the sandbox's matter (`sandbox/base.py`).
"""

import dataclasses
import signal
from dataclasses import dataclass

from turnwise.tools.sandbox import CodeResult, ExitKind, Sandbox, SandboxSettings, open_sandbox
from turnwise.tools.tool import Tool, check_limits, tool
from turnwise.types import ToolResult

_MAX_QUEUE_SECONDS = 3600.0
"""For a call to wait for its turn; the sandbox limits the code's own time."""
_NOTE_CHARS = 60


def python_tool(sandbox: SandboxSettings | Sandbox, *, max_chars: int = 4000) -> Tool:
    """A tool named `python` that shows what code prints and the value of its last expression.

    Args:
        sandbox: Its settings, or a sandbox that the caller keeps and closes.
        max_chars: Longer output loses its middle, with a note.
    """
    check_limits("python", _MAX_QUEUE_SECONDS, max_chars)
    runs_in = open_sandbox(sandbox) if isinstance(sandbox, SandboxSettings) else sandbox
    bound = _Python(sandbox=runs_in, max_chars=max_chars).python
    return dataclasses.replace(bound, timeout=_MAX_QUEUE_SECONDS + runs_in.settings.seconds, max_chars=max_chars)


def show_result(result: CodeResult, settings: SandboxSettings, max_chars: int) -> str:
    """What the agent reads: the output, and a last line where the code was stopped or crashed."""
    end = _describe_exit(result, settings)
    output = result.output.rstrip()
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
        result = await self.sandbox.run(code)
        content = show_result(result, self.sandbox.settings, self.max_chars)
        return ToolResult(content=content, ok=result.exit is ExitKind.FINISHED)


def _describe_exit(result: CodeResult, settings: SandboxSettings) -> str:
    match result.exit:
        case ExitKind.FINISHED | ExitKind.EXCEPTION:
            return ""
        case ExitKind.TIMEOUT:
            return f"Stopped after {settings.seconds:g} s; the code must end sooner."
        case ExitKind.OUT_OF_MEMORY:
            return f"Stopped: the code used more than {settings.memory_mb} MB of memory."
        case ExitKind.TOO_MUCH_OUTPUT:
            return f"Stopped: the code printed more than {settings.output_kb} kB."
        case ExitKind.TOO_MUCH_DISK:
            return f"Stopped: the code wrote more than {settings.disk_mb} MB, or too many files."
        case ExitKind.CRASHED if result.status < 0:
            number = -result.status
            return f"Crashed: {signal.Signals(number).name} ({signal.strsignal(number)})."
        case ExitKind.CRASHED:
            return f"The code ended its process with status {result.status}."


def _shorten(text: str, room: int) -> str:
    """At most `room` characters: the beginning, a note, and the end, where results and tracebacks are."""
    if len(text) <= room:
        return text
    kept = max(room - _NOTE_CHARS, 0)
    tail = kept // 2
    note = f"[... {len(text) - kept} characters are not shown ...]"
    return f"{text[: kept - tail]}\n{note}\n{text[len(text) - tail :]}"
