"""Sandboxes inside bubblewrap, gVisor and containers: the same answers as a process of our own."""

import asyncio
import os
import stat
import sys

import pytest

from sandboxed import QUICK, nothing_is_left  # noqa: F401 - a fixture that every test uses
from turnwise.errors import ToolError
from turnwise.tools.sandbox import CodeResult, ExitKind, SandboxSettings, open_sandbox
from turnwise.tools.sandbox.bubblewrap import BubblewrapSandbox
from turnwise.tools.sandbox.container import ContainerSandbox
from turnwise.tools.sandbox.gvisor import GvisorSandbox
from turnwise.tools.sandbox.process import ProcessSandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these programs are for Linux")

CODE = {
    "6 * 7": ("finished", "42\n"),
    "1 / 0": ("exception", "ZeroDivisionError: division by zero\n"),
    "while True: pass": ("timeout", ""),
    "data = bytes(10 ** 9)": ("out_of_memory", ""),
    "while True: print('x' * 99)": ("too_much_output", "x"),
    "for n in range(99): open(str(n), 'wb').write(bytes(1 << 20))": ("too_much_disk", ""),
    "import os\nos.abort()": ("crashed", ""),
    "open(DATA).read()": ("finished", "'1,2'\n"),
    "open(DATA, 'a')": ("exception", "can be changed"),
    "import socket\nsocket.socket()": ("exception", "there is no network here"),
    "import os\nos.fork()": ("exception", "no other process can be started here"),
}


@pytest.mark.parametrize("kind", [BubblewrapSandbox, GvisorSandbox])
def test_a_backend_answers_as_the_process_does(kind, tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("1,2")
    try:
        sandbox = kind(QUICK.model_copy(update={"readable": (str(data),), "at_once": 4}))
    except ToolError as error:
        pytest.skip(str(error))

    async def run_all() -> list[CodeResult]:
        results = await asyncio.gather(*(sandbox.run(code.replace("DATA", repr(str(data)))) for code in CODE))
        await sandbox.close()
        return results

    assert not sandbox.gaps
    for (code, (ending, words)), result in zip(CODE.items(), asyncio.run(run_all()), strict=True):
        assert (code, result.exit) == (code, ExitKind(ending)), result
        assert words in result.output, code
    assert data.read_text() == "1,2"
    assert not list(tmp_path.glob("turnwise-*"))


FAKE = """#!{python}
import os, sys
options = sys.argv[1:]
open({log!r}, "w").write("\\n".join(options))
place = options.index("a-picture")
folders = dict(option[9:].split(":")[1::-1] for option in options[:place] if option.startswith("--volume="))
inside = "/turnwise/tools/sandbox"
command = [folders[inside] + word[len(inside):] if word.startswith(inside) else word for word in options[place + 1:]]
os.execv(sys.executable, [sys.executable, *command[1:]])
"""


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """A program that takes a container's command line and runs what would run in the container, without one."""
    log = tmp_path / "options"
    program = tmp_path / "podman"
    program.write_text(FAKE.format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("turnwise.tools.sandbox.container.SCRATCH", str(tmp_path))
    return log


def test_a_container_is_closed_on_all_sides_and_runs_the_same_guard(podman, tmp_path):
    settings = QUICK.model_copy(
        update={"kind": "container", "args": {"image": "a-picture"}, "readable": ("/usr/share",)}
    )
    sandbox = open_sandbox(settings)
    assert isinstance(sandbox, ContainerSandbox)
    assert asyncio.run(sandbox.run("6 * 7")) == CodeResult(exit=ExitKind.FINISHED, output="42\n")
    options = podman.read_text().split("\n")
    closed = {
        "--rm",
        "--interactive",
        "--pull=never",
        "--network=none",
        "--read-only",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--pids-limit=256",
        f"--memory={QUICK.memory_mb + 2 * QUICK.disk_mb + 256}m",
        "--volume=/usr/share:/usr/share:ro",
        f"--user={os.geteuid()}:{os.getegid()}",
    }
    assert closed <= set(options[: options.index("a-picture")])
    assert f"--tmpfs={tmp_path}:rw,nosuid,nodev,mode=1777,size={QUICK.disk_mb << 21}" in options


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bubblewrap", "there is no program bwrap; install the package bubblewrap"),
        ("gvisor", "there is no program runsc; install gVisor"),
        ("container", "there is no program podman or docker; install it"),
    ],
)
def test_a_backend_that_is_not_there_is_one_line(kind, words, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=f"^sandbox.kind={kind}: {words}"):
        open_sandbox(SandboxSettings(kind=kind))


def test_a_container_without_its_image_is_one_line(tmp_path, monkeypatch):
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Error: no such image'\nexit 125\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="cannot run code on this machine: Error: no such image"):
        open_sandbox(SandboxSettings(kind="container"))


def test_the_quickest_without_gaps_is_found_by_itself():
    assert type(open_sandbox(QUICK)) is ProcessSandbox
