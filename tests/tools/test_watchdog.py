"""The watchdog in forked processes; what it says is in tests/newcomer/test_row_06_blocking_tools.py."""

import asyncio
import os
import signal

from turnwise.tools import watchdog


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
