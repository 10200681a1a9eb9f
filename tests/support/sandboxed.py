"""Code run in a sandbox by tests, which then look for anything that it left behind."""

import asyncio
import ctypes
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from turnwise.tools.python import python_tool
from turnwise.tools.sandbox import SandboxSettings
from turnwise.types import ToolResult

QUICK = SandboxSettings(seconds=1.0, memory_mb=64, disk_mb=2, output_kb=16)
SLACK = 8.0
"""Seconds that a busy machine may add to a call; the point is that it does not go on for ever."""
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux shows them")


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
