"""The watchdog in forked processes; what it says is in tests/newcomer/test_row_06_blocking_tools.py."""

import asyncio
import gc
import os
import signal
import sys
import threading

import pytest

from turnwise.tools import watchdog
from turnwise.tools.code_lines import frame_of_thread


def test_a_process_that_is_forked_while_the_watchdog_looks_does_not_wait_for_it():
    with watchdog._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # a deadlock ends the child

            async def watch() -> None:
                with watchdog.watching():
                    await asyncio.sleep(0)

            asyncio.run(watch())
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("collects", [True, False])
def test_a_stack_is_read_without_the_garbage_collector(monkeypatch, collects):
    """CPython 3.11 may stop for ever where it collects within `sys._current_frames` while a thread starts another."""
    seen = []
    frames = sys._current_frames
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or frames())
    (gc.enable if collects else gc.disable)()
    try:
        frame = frame_of_thread(threading.get_ident())
        assert gc.isenabled() == collects, "as it was"
    finally:
        gc.enable()
    assert seen == [False]
    assert frame is not None
    assert frame_of_thread(-1) is None
