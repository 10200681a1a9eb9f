"""Code that the model wrote: it runs, and whatever it does wrong is told to the model in words."""

import asyncio
import json
import os
import re
import sys
import time

import pytest

from sandboxed import QUICK, SLACK, nothing_is_left, observe  # noqa: F401 - a fixture that every test uses
from turnwise.errors import ConfigError, ToolError
from turnwise.tools import run_calls
from turnwise.tools.python import python_tool, show_result
from turnwise.tools.sandbox import CodeResult, ExitKind, Resource, SandboxSettings, open_sandbox
from turnwise.tools.sandbox.process import Launch, ProcessSandbox
from turnwise.types import ToolCall, ToolResult

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the python tool needs Linux or macOS")


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("6 * 7", "42"),
        ("print('one')\nx = [1, 2]\nx", "one\n[1, 2]"),
        ("print('a', end='')\n'b'", "a'b'"),
        ("x = 3", "(no output; print what you want to see)"),
        ("", "(no output; print what you want to see)"),
        ("import sys\nprint('said', file=sys.stderr)\nsys.exit()", "said"),
        ("print('\\ud83d', 'é', '☃')", "\\ud83d é ☃"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
        ("import sys\nsys.stdout = None\n1 + 1", "2"),
        ("import threading\nthreading.Thread(target=lambda: print('from a thread')).start()", "from a thread"),
        ("import asyncio\nasync def f(): return 'async'\nasyncio.run(f())", "'async'"),
        ("import dataclasses, decimal, datetime, sqlite3, hashlib\nhashlib.md5(b'').hexdigest()[:4]", "'d41d'"),
        ("open('note', 'w').write('kept')\nopen('note').read()", "'kept'"),
        ("from fractions import Fraction as F\nF(1, 3) + F(1, 6)", "Fraction(1, 2)"),
    ],
)
def test_output_and_the_last_value_are_shown(code, shown):
    assert observe(code) == ToolResult(content=shown)


def test_an_error_shows_the_lines_of_the_code_alone():
    code = "import json\n\ndef read(text):\n    return json.loads(text)\n\nprint('before')\nread('{')\n"
    said = (
        "before\n"
        "Traceback (most recent call last):\n"
        "  line 7\n"
        "    read('{')\n"
        "  line 4, in read\n"
        "    return json.loads(text)\n"
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    assert observe(code) == ToolResult(content=said, ok=False)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\ny = = 2", "Traceback (most recent call last):\n  line 2\n    y = = 2\nSyntaxError: invalid syntax"),
        ("(" * 5000, "SyntaxError: "),
        ("x\0", "source code string cannot contain null bytes"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "calls are not shown\n  line 2, in f\n"),
        ("input('name? ')", "EOFError: EOF when reading a line"),
        ("import sys\nsys.exit('bad luck')", "SystemExit: bad luck"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class E(Exception):\n    def __str__(self): return 1 / 0\nraise E", "E: (it cannot be shown)"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("import os\nos._exit(3)", "The code ended its process with status 3."),
        ("import os\nprint('so far')\nos.abort()", "so far\nCrashed: SIGABRT (Aborted"),
        ("import faulthandler\nfaulthandler._sigsegv()", "Crashed: SIGSEGV (Segmentation fault"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "Crashed: SIGKILL (Killed"),
        ("open('big', 'wb').write(bytes(3 << 20))", "OSError: [Errno 27] File too large"),
        ("fs = [open('f', 'w') for _ in range(100)]", "OSError: [Errno 24] Too many open files"),
    ],
)
def test_every_other_failure_is_told_too(code, said):
    result = observe(code)
    assert not result.ok
    assert said in result.content
    assert "turnwise" not in re.sub(r"turnwise-python-\w+-\w+", "", result.content)


LOOPS = {
    "busy": "print('started')\nwhile True: pass",
    "sleeping": "import time\nprint('started')\ntime.sleep(1000)",
    "deaf": (
        "import signal\nfor s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(s, signal.SIG_IGN)\nprint('started')\nwhile True: pass"
    ),
    "in C": "print('started')\n10 ** 10 ** 9",
    "in threads": "import threading\nprint('started')\nthreading.Thread(target=threading.Event().wait).start()",
    "holding on": "print('started')\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "without output": "import os, time\nprint('started')\nos.close(1); os.close(2)\ntime.sleep(1000)",
}


def test_code_that_goes_on_is_stopped_and_so_is_its_neighbour():
    """All at once: each is stopped after its second, whatever it does, and what it printed is kept."""
    endless = ProcessSandbox(SandboxSettings(seconds=1.0, at_once=len(LOOPS)))

    async def run_all() -> list[CodeResult]:
        return await asyncio.gather(*(endless.run(code) for code in LOOPS.values()))

    start = time.monotonic()
    results = asyncio.run(run_all())
    assert 1.0 <= time.monotonic() - start < 1.0 + SLACK
    assert {name: result for name, result in zip(LOOPS, results, strict=True) if result.output != "started\n"} == {}
    assert endless.exits == {ExitKind.TIMEOUT: len(LOOPS)}
    assert show_result(results[0], endless.settings, 100) == "started\nStopped after 1 s; the code must end sooner."


def test_a_gigabyte_printed_stops_at_the_limit():
    result = observe("line = 'x' * 99\nfor _ in range(10 ** 7): print(line)")
    assert not result.ok
    assert result.content.startswith("xxxx")
    assert result.content.endswith("Stopped: the code printed more than 16 kB.")
    assert len(result.content) <= 4000


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit memory")
@pytest.mark.parametrize(
    "code",
    [
        "data = bytearray(10 ** 9)",
        "data = []\nwhile True: data.append(bytes(10 ** 6))",
        "import mmap\ndata = mmap.mmap(-1, 10 ** 9)\nraise MemoryError",
        "def deep(n):\n    data = bytes(10 ** 6)\n    return deep(n + 1)\ndeep(0)",
    ],
)
def test_memory_has_a_limit(code):
    result = observe(code)
    if "mmap" in code:
        assert "Cannot allocate memory" in result.content
    else:
        assert result == ToolResult(content="Stopped: the code used more than 64 MB of memory.", ok=False)


class Canned:
    """A sandbox of the user's own, which answers the same to everything and guards no files."""

    gaps = (Resource.FILES,)

    def __init__(self, settings: SandboxSettings, *, status: int = 7) -> None:
        self.settings = settings
        self.status = status

    async def run(self, code: str) -> CodeResult:
        return CodeResult(exit=ExitKind.CRASHED, output=f"ran {code}", status=self.status)

    async def close(self) -> None:
        return


def no_sandbox(settings: SandboxSettings) -> object:
    return settings


def test_the_tool_runs_in_any_sandbox(caplog):
    mine = SandboxSettings(kind=f"{__name__}:Canned", seconds=3, isolation="partial")
    said = ToolResult(content="ran 1 + 1\nThe code ended its process with status 7.", ok=False)
    assert observe("1 + 1", mine) == said
    assert "the kernel does not guard files" in caplog.text
    assert asyncio.run(python_tool(Canned(mine)).call('{"code": "1 + 1"}')) == said
    assert python_tool(Canned(mine)).timeout > python_tool(Canned(QUICK)).timeout > 3600
    for isolation in ("best", "kernel"):
        with pytest.raises(ToolError, match=f"isolation={isolation}: on this machine the kernel does not guard files;"):
            open_sandbox(mine.model_copy(update={"isolation": isolation}))
    assert observe("1", mine.model_copy(update={"args": {"status": 9}})).content.endswith("with status 9.")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "proces"}, r"sandbox\.kind: 'proces' is not a sandbox kind \(did you mean 'process'\?\)"),
        ({"kind": "no_such_module:Box"}, "there is no module 'no_such_module'"),
        ({"kind": f"{__name__}:Cannde"}, r"has no 'Cannde' \(did you mean 'Canned'\?\)"),
        ({"kind": f"{__name__}:no_sandbox"}, "made no sandbox; write a class that takes SandboxSettings"),
        ({"kind": f"{__name__}:Canned", "args": {"statsu": 9}}, r"sandbox\.args: .*did you mean 'status'\?"),
        ({"args": {"status": 9}}, r"sandbox\.args: auto has no argument 'status'"),
        ({"kind": "process", "args": {"status": 9}}, r"sandbox\.args: process has no argument 'status'"),
    ],
)
def test_a_sandbox_that_cannot_be_made_is_named(settings, words):
    with pytest.raises(ConfigError, match=words):
        open_sandbox(SandboxSettings(**settings))


def test_a_sandbox_that_breaks_is_told_and_counted_as_nothing():
    broken = ProcessSandbox(QUICK)
    broken._launch = Launch(command=(sys.executable, "-S", "-c", "raise SystemExit('no space left')"))
    result = asyncio.run(python_tool(broken).call('{"code": "1"}'))
    assert result == ToolResult(content="python failed: RuntimeError: the sandbox broke: no space left", ok=False)
    assert not broken.exits


def test_the_tool_as_the_model_sees_it():
    tool = python_tool(QUICK)
    assert tool.spec.name == "python"
    assert tool.spec.parameters["required"] == ["code"]
    calls = [ToolCall(id="1", name="python", arguments=json.dumps({"code": code})) for code in ("1 + 1", "1 / 0")]
    first, second = asyncio.run(run_calls([tool], calls))
    assert first == ToolResult(content="2")
    assert second.content.endswith("ZeroDivisionError: division by zero")
    wrong = asyncio.run(tool.call('{"script": "1"}'))
    assert "there is no argument 'script'" in wrong.content


def test_long_output_loses_its_middle_and_keeps_its_end():
    long = CodeResult(exit=ExitKind.TIMEOUT, output="a" * 500 + "b" * 500)
    shown = show_result(long, QUICK, 200)
    assert len(shown) <= 200
    first, note, last, end = shown.split("\n")
    assert (set(first), set(last)) == ({"a"}, {"b"})
    assert note == f"[... {1000 - len(first) - len(last)} characters are not shown ...]"
    assert end == "Stopped after 1 s; the code must end sooner."
    assert len(first) + len(last) > 80
