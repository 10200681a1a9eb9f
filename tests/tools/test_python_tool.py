"""Code that the model wrote: it runs, it fails in words, it is held, and nothing of it is left when it is over."""

import asyncio
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from turnwise.errors import ToolError, TurnwiseError
from turnwise.tools import run_calls
from turnwise.tools.python import python_tool, show_result
from turnwise.tools.sandbox import CodeResult, ExitKind, Resource, SandboxSettings, open_sandbox
from turnwise.tools.sandbox import process as sandbox
from turnwise.tools.sandbox.process import ProcessSandbox, Protection
from turnwise.types import ToolCall, ToolResult

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the python tool needs Linux or macOS")

QUICK = SandboxSettings(seconds=1.0, memory_mb=64, disk_mb=2, output_kb=16)
SLACK = 8.0
"""Seconds that a busy machine may add to a call; the point is that it does not go on for ever."""
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux shows them")


def play(code: str, settings: SandboxSettings = QUICK, **options) -> CodeResult:
    return asyncio.run(ProcessSandbox(settings, **options).run(code))


def observe(code: str, settings: SandboxSettings = QUICK) -> ToolResult:
    return asyncio.run(python_tool(settings).call(json.dumps({"code": code})))


def children() -> set[int]:
    """The living processes that this one started, or that became its own when their parents ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """After every test: no process, wherever it fled to, and no file in the temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if sys.platform != "linux":
        yield
        return
    before = children()
    adopt = ctypes.CDLL(None).prctl
    adopt(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come here, where they are seen
    try:
        yield
        deadline = time.monotonic() + SLACK
        while (left := children() - before) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left
        assert not list(tmp_path.glob("turnwise-python-*"))
    finally:
        adopt(36, 0, 0, 0, 0)


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


REFUSALS = {
    "open('/etc/passwd').read()": "only files in the working directory can be read, and /etc/passwd is not one",
    "open(SPOT, 'w')": "only files in the working directory can be changed",
    "open(SPOT, 'a')": "only files in the working directory can be changed",
    "import os\nos.symlink(SPOT, 'link')\nopen('link', 'w')": "only files in the working directory can be changed",
    "import os\nos.remove(SPOT)": "only files in the working directory can be changed",
    "import os\nos.rename(SPOT, 'mine')": "only files in the working directory can be changed",
    "import os\nos.mkdir(SPOT + 'folder')": "only files in the working directory can be changed",
    "import os\nos.listdir('/')": "only files in the working directory can be read",
    "import sqlite3\nsqlite3.connect(SPOT)": "only files in the working directory can be changed",
    "import socket\nsocket.create_connection(('127.0.0.1', 1))": "there is no network here",
    "import socket\nsocket.socket()": "there is no network here",
    "import urllib.request\nurllib.request.urlopen('http://example.com')": "there is no network here",
    "import os\nos.fork()": "no other process can be started here",
    "import os\nos.system('true')": "no other process can be started here",
    "import os\nos.execv('/bin/true', ['true'])": "no other process can be started here",
    "import subprocess\nsubprocess.run(['true'])": "no other process can be started here",
    "import os\nwhile True: os.fork()": "no other process can be started here",
    "import os\nos.kill(os.getppid(), 9)": "signals can be sent to this process alone",
    "import os\nos.kill(-1, 9)": "signals can be sent to this process alone",
    "import ctypes": "foreign functions (ctypes) are not available here",
    "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (9, 9))": "the limits of this process cannot be changed",
}


@pytest.mark.parametrize("protections", [tuple(Protection), (Protection.AUDIT_HOOK,)], ids=["all", "hook alone"])
def test_what_is_not_allowed_is_refused_with_the_same_words_everywhere(protections, tmp_path):
    spot = tmp_path / "spot"
    spot.write_text("untouched")
    held = ProcessSandbox(SandboxSettings(seconds=20), protections=protections)

    async def run_all() -> list[CodeResult]:
        return await asyncio.gather(*(held.run(code.replace("SPOT", repr(str(spot)))) for code in REFUSALS))

    for (code, words), result in zip(REFUSALS.items(), asyncio.run(run_all()), strict=True):
        assert result.exit is ExitKind.EXCEPTION, code
        assert words in result.output, code
    assert [file.name for file in tmp_path.iterdir()] == ["spot"]
    assert spot.read_text() == "untouched"


KERNEL_REFUSALS = {
    # each by itself, without the hook: the code that it holds, and what the code then meets
    (Protection.LANDLOCK,): {
        "open('/etc/passwd')": "PermissionError: [Errno 13]",
        "open('/proc/self/environ')": "PermissionError: [Errno 13]",
        "import os\nos.listdir('/')": "PermissionError: [Errno 13]",
        "open(SPOT, 'r+')": "PermissionError: [Errno 13]",
        "import os\nos.remove(SPOT)": "PermissionError: [Errno 13]",
        "import os\nos.truncate(SPOT, 0)": "PermissionError: [Errno 13]",
    },
    (Protection.NAMESPACES, Protection.MOUNTS): {
        "open(SPOT, 'w')": "Read-only file system",
        "import os\nos.chmod(SPOT, 0)": "Read-only file system",
        "for n in range(9): open(str(n), 'wb').write(bytes(1 << 20))": "No space left on device",
        "import socket\nsocket.create_connection(('1.1.1.1', 80), timeout=9)": "Network is unreachable",
        "import os\nos.getppid(), os.getpid() < 9": "(1, True)",
    },
    (Protection.SECCOMP,): {
        "import socket\nsocket.socket()": "PermissionError: [Errno 1]",
        "import socket\nsocket.socket(socket.AF_UNIX)": "PermissionError: [Errno 1]",
        "import os\nwhile True: os.fork()": "PermissionError: [Errno 1]",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})": "PermissionError: [Errno 1]",
        "import os\nos.execv('/bin/true', ['true'])": "PermissionError: [Errno 1]",
        "import os\nos.setsid()": "PermissionError: [Errno 1]",
        "import os\nos.kill(os.getppid(), 0)": "PermissionError: [Errno 1]",
        "import os\nos.memfd_create('x')": "PermissionError: [Errno 1]",
        "import ctypes\nctypes.CDLL(None).unshare(0x10000000)": "-1",
        "import ctypes\nctypes.CDLL(None).syscall(39) == __import__('os').getpid()": "True",
        "import threading\nt = threading.Thread(target=print, args=('ran',))\nt.start()": "ran",
    },
    (Protection.MEMORY_LIMIT,): {
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))": "ValueError: not allowed",
        "import ctypes\nctypes.string_at(0)": "signal 11",
    },
}


@ON_LINUX
@pytest.mark.parametrize("protections", KERNEL_REFUSALS, ids="+".join)
def test_the_kernel_holds_code_that_gets_past_the_hook(protections, tmp_path):
    spot = tmp_path / "spot"
    spot.write_text("untouched")
    before = spot.stat()
    held = ProcessSandbox(SandboxSettings(seconds=20, disk_mb=2), protections=protections)
    if not held.protections >= set(protections):
        pytest.skip(f"this kernel gives the sandbox no {' and '.join(protections)}")
    tries = KERNEL_REFUSALS[protections]

    async def run_all() -> list[CodeResult]:
        return await asyncio.gather(*(held.run(code.replace("SPOT", repr(str(spot)))) for code in tries))

    for (code, met), result in zip(tries.items(), asyncio.run(run_all()), strict=True):
        assert met in f"{result.output} signal {-result.status}", code
    assert (spot.read_text(), spot.stat().st_mode) == ("untouched", before.st_mode)


@ON_LINUX
@pytest.mark.parametrize("protections", [(), (Protection.NAMESPACES,)], ids=["unheld", "namespaces"])
@pytest.mark.parametrize("end", ["", "time.sleep(1000)", "os.abort()"], ids=["done", "time", "crashed"])
def test_children_that_flee_are_found_and_killed(protections, end):
    """Where nothing keeps code from forking: a tree of deaf processes in sessions of their own."""
    code = (
        "import os, signal, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() > 0 and os.getpid() % 2: os._exit(0)\n"
        "        for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)\n"
        "        while True: time.sleep(1000)\n"
        f"print('forked')\n{end}"
    )
    start = time.monotonic()
    result = play(code, protections=protections)
    assert result.output == "forked\n"
    assert result.exit is {"": ExitKind.FINISHED, "os.abort()": ExitKind.CRASHED}.get(end, ExitKind.TIMEOUT)
    assert time.monotonic() - start < QUICK.seconds + SLACK


@ON_LINUX
def test_a_cancelled_call_is_over_at_once():
    others = children()  # such as the process that tracks what tests before this one share with theirs

    async def cancel() -> float:
        running = asyncio.create_task(ProcessSandbox(SandboxSettings(seconds=60)).run("while True: pass"))
        await asyncio.sleep(0.3)
        assert children() - others
        start = time.monotonic()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return time.monotonic() - start

    assert asyncio.run(cancel()) < SLACK
    assert not children() - others


@ON_LINUX
def test_the_code_does_not_outlive_a_trainer_that_is_killed(tmp_path):
    program = (
        "import asyncio, sys, tempfile\n"
        "from turnwise.tools.sandbox import ProcessSandbox, SandboxSettings\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "async def main():\n"
        "    running = asyncio.create_task(ProcessSandbox(SandboxSettings(seconds=60)).run('while True: pass'))\n"
        "    await asyncio.sleep(0.3)\n"
        "    sys.stdout.write('running\\n'); sys.stdout.flush()\n"
        "    await running\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "running\n"
        trainer.send_signal(signal.SIGKILL)
    # The fixture then finds neither a process nor a file.


def test_nothing_of_the_trainer_is_handed_down(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    leak = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leak, True)
    code = (
        "import os\n"
        "def is_open(fd):\n"
        "    try: return bool(os.fstat(fd))\n"
        "    except OSError: return False\n"
        "print(sorted(os.environ), [fd for fd in range(1000) if is_open(fd)], os.listdir())"
    )
    result = play(code)
    os.close(leak)
    assert result.output == "['HOME', 'LANG', 'TMPDIR'] [0, 1, 2] []\n"


def test_runs_share_nothing_and_are_repeatable():
    kept = ProcessSandbox(QUICK)

    async def twice() -> list[str]:
        code = "import os\nfirst = os.listdir()\nopen('mine', 'w')\nfirst, set('abcdefgh'), hash('x')"
        return [(await kept.run(code)).output for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first.startswith("([], {")
    assert first == second


def test_only_so_many_run_at_once_and_the_loop_goes_on():
    limited = ProcessSandbox(SandboxSettings(seconds=20, at_once=2))

    async def run_all() -> tuple[list[CodeResult], int]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(beat())
        code = "import time\nstart = time.monotonic()\ntime.sleep(0.15)\nstart, time.monotonic()"
        results = await asyncio.gather(*(limited.run(code) for _ in range(6)))
        beating.cancel()
        return results, beats

    results, beats = asyncio.run(run_all())
    spans = [tuple(map(float, result.output.strip("()\n").split(","))) for result in results]
    side_by_side = [sum(start <= moment < end for start, end in spans) for moment, _ in spans]
    assert max(side_by_side) == 2
    assert beats >= 10


def test_folders_may_be_opened_to_the_code_for_reading(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "table.csv").write_text("1,2")
    settings = QUICK.model_copy(update={"readable": (str(data),)})
    assert play(f"open('{data}/table.csv').read()", settings).output == "'1,2'\n"
    assert "can be changed" in play(f"open('{data}/table.csv', 'w')", settings).output
    with pytest.raises(ToolError, match="there is no file or folder"):
        ProcessSandbox(QUICK.model_copy(update={"readable": (str(data / "none"),)}))


def test_the_protections_in_force_are_told_and_can_be_demanded(caplog):
    bare = ProcessSandbox(QUICK, protections=())
    assert bare.protections <= {Protection.MEMORY_LIMIT}
    assert bare.gaps[:3] == ("the network", "files", "processes")
    assert "does not guard the network, files, processes" in caplog.text
    with pytest.raises(ToolError, match="isolation=kernel: on this machine the kernel does not guard the network"):
        ProcessSandbox(QUICK.model_copy(update={"isolation": "kernel"}), protections={Protection.AUDIT_HOOK})


class Canned:
    """A sandbox of the user's own, which answers the same to everything and guards no files."""

    gaps = (Resource.FILES,)

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.closed = False

    async def run(self, code: str) -> CodeResult:
        return CodeResult(exit=ExitKind.CRASHED, output=f"ran {code}", status=7)

    async def close(self) -> None:
        self.closed = True


def test_the_tool_runs_in_any_sandbox(caplog):
    mine = SandboxSettings(kind=f"{__name__}:Canned", seconds=3)
    said = ToolResult(content="ran 1 + 1\nThe code ended its process with status 7.", ok=False)
    assert observe("1 + 1", mine) == said
    assert "the kernel does not guard files" in caplog.text
    assert asyncio.run(python_tool(Canned(mine)).call('{"code": "1 + 1"}')) == said
    assert python_tool(Canned(mine)).timeout > python_tool(Canned(QUICK)).timeout > 3600
    with pytest.raises(ToolError, match="isolation=kernel: on this machine the kernel does not guard files"):
        open_sandbox(mine.model_copy(update={"isolation": "kernel"}))


def test_our_own_sandbox_is_the_default_and_can_be_closed():
    opened = open_sandbox(QUICK)
    assert isinstance(opened, ProcessSandbox)
    asyncio.run(opened.close())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("proces", r"did you mean 'process'\?"),
        ("no_such_module:Box", "no_such_module"),
        (f"{__name__}:Cannde", "Cannde"),
    ],
)
def test_a_sandbox_that_is_not_there_is_named(kind, words):
    with pytest.raises(TurnwiseError, match=words):
        open_sandbox(SandboxSettings(kind=kind))


def test_a_machine_that_gives_less_is_given_less(monkeypatch):
    """Containers differ: where code cannot run under all protections, fewer are tried, and the last words are kept."""
    sandbox._find_protections.cache_clear()
    tried = []

    def run(protections: frozenset[Protection]) -> bytes:
        tried.append(protections)
        return b"no such thing here" if protections & blocked else f"finished 0 {','.join(protections)}\n".encode()

    monkeypatch.setattr(sandbox, "_try_run", run)
    monkeypatch.setattr(sandbox.sys, "platform", "linux")
    blocked = {Protection.MOUNTS}
    assert ProcessSandbox(QUICK).protections == set(Protection) - {Protection.NAMESPACES, Protection.MOUNTS}
    assert len(tried) == 2
    sandbox._find_protections.cache_clear()
    blocked = set(Protection)
    with pytest.raises(ToolError, match="cannot run code on this machine: no such thing here"):
        ProcessSandbox(QUICK)
    sandbox._find_protections.cache_clear()


def test_a_sandbox_that_breaks_is_told_and_counted_as_nothing(monkeypatch):
    broken = ProcessSandbox(QUICK)
    monkeypatch.setattr(sandbox, "_COMMAND", (sys.executable, "-S", "-c", "raise SystemExit('no space left')"))
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
