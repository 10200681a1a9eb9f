"""What holds the code: it is refused, killed and cleaned up after, and nothing of it is left when it is over."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from sandboxed import ON_LINUX, QUICK, SLACK, children, nothing_is_left  # noqa: F401 - a fixture that every test uses
from turnwise.errors import ToolError
from turnwise.tools.sandbox import CodeResult, ExitKind, SandboxSettings, open_sandbox
from turnwise.tools.sandbox import process as sandbox
from turnwise.tools.sandbox.process import ProcessSandbox, Protection

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the python tool needs Linux or macOS")


def weak(settings: SandboxSettings = QUICK, **options) -> ProcessSandbox:
    """With some protections alone, which a recipe must accept by name."""
    return ProcessSandbox(settings.model_copy(update={"isolation": "none"}), **options)


def play(code: str, settings: SandboxSettings = QUICK, **options) -> CodeResult:
    return asyncio.run((weak if options else ProcessSandbox)(settings, **options).run(code))


REFUSALS = {
    "open('/etc/passwd').read()": "only files in the working directory can be read, and /etc/passwd is not one",
    "open(SPOT, 'w')": "only files in the working directory can be changed",
    "open(SPOT, 'a')": "only files in the working directory can be changed",
    "import os\nos.symlink(SPOT, 'link')\nopen('link', 'w')": "only files in the working directory can be changed",
    "import os\nos.remove(SPOT)": "only files in the working directory can be changed",
    "import os\nos.chmod('.', 0o700)": "modes, owners, times and attributes of files cannot be changed here",
    "import os\nos.utime('.')": "modes, owners, times and attributes of files cannot be changed here",
    "import os\nos.truncate(SPOT, 0)": "open the file and truncate it",
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
    held = weak(SandboxSettings(seconds=20), protections=protections)

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
        "import os\nos.chmod('.', 0o700)": "PermissionError: [Errno 1]",
        "import os\nos.setpriority(os.PRIO_PROCESS, 0, 19)": "PermissionError: [Errno 1]",
        "import os\nos.open('new', os.O_CREAT)\nos.open('new', os.O_TRUNC)": "PermissionError: [Errno 1]",
        "open('new', 'w').write('x')\nf = open('new', 'r+')\nf.truncate(0)\nopen('new').read()": "''",
        "import asyncio\nasyncio.run(asyncio.sleep(0, 'slept'))": "slept",
        "import os\nf = open('new', 'wb')\nos.posix_fallocate(f.fileno(), 0, 9999)\nos.path.getsize('new')": "9999",
        "import sqlite3\nsqlite3.connect('db').execute('create table t(a)').fetchall()": "[]",
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
    held = weak(SandboxSettings(seconds=20, disk_mb=2), protections=protections)
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


def test_the_protections_in_force_are_told(caplog):
    bare = weak(protections=())
    assert bare.protections <= {Protection.MEMORY_LIMIT}
    assert bare.gaps == ("the network", "files", "processes", "memory", "disk")
    assert "does not guard the network, files, processes, memory, disk" in caplog.text


@ON_LINUX
def test_a_folder_of_which_too_much_is_left_is_removed_by_the_caller(tmp_path, monkeypatch):
    """A guard that was killed leaves the working directory, however deep the code has nested it."""
    deep = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')\nos.mkdir('locked', 0)\nwhile True: pass"
    held = weak(SandboxSettings(seconds=60), protections=())

    async def kill_guard() -> None:
        running = asyncio.create_task(held.run(deep))
        while not list(tmp_path.glob("turnwise-python-*/d/d/d")):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        for guard in children() - before:
            os.kill(guard, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="the sandbox broke"):
            await running

    before = children()
    asyncio.run(kill_guard())
    assert not list(tmp_path.glob("turnwise-python-*"))


def test_our_own_sandbox_is_the_default_and_can_be_closed():
    opened = open_sandbox(QUICK)
    assert isinstance(opened, ProcessSandbox)
    asyncio.run(opened.close())


def test_a_machine_that_gives_less_is_given_less(monkeypatch):
    """Containers differ: where code cannot run under all protections, fewer are tried, and the last words are kept."""
    sandbox._find_protections.cache_clear()
    tried = []

    def run(_, protections: frozenset[Protection], __) -> bytes:
        tried.append(protections)
        return b"no such thing here" if protections & blocked else f"finished 0 {','.join(protections)}\n".encode()

    monkeypatch.setattr(sandbox, "_try_run", run)
    monkeypatch.setattr(sandbox.sys, "platform", "linux")
    blocked = {Protection.MOUNTS}
    assert weak().protections == set(Protection) - {Protection.NAMESPACES, Protection.MOUNTS}
    assert len(tried) == 2
    sandbox._find_protections.cache_clear()
    blocked = set(Protection)
    with pytest.raises(ToolError, match="cannot run code on this machine: no such thing here"):
        weak()
    sandbox._find_protections.cache_clear()
