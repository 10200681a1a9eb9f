"""A program as a process of its own group: started, watched, and gone when its episode is.

Invariant: after `stop` no process of the group is left; of what the program wrote, the end is kept.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from turnwise.errors import EnvError
from turnwise.gateway.session import Ended

_KEPT_BYTES: Final = 64 * 2**10
_GRACE_SECONDS: Final = 2.0
"""Between SIGTERM and SIGKILL, and for pipes that a grandchild still holds."""


class Process:
    """`process = await Process.start(["python", "agent.py"], env)`; `await process.wait()` says how it ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tails = {"stdout": b"", "stderr": b""}
        self._readers = [
            asyncio.ensure_future(self._read("stdout", process.stdout)),
            asyncio.ensure_future(self._read("stderr", process.stderr)),
        ]

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> "Process":
        """Starts a command in a process group of its own."""
        try:
            started = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env=dict(env),
                cwd=cwd,
            )
        except OSError as error:
            raise EnvError(f"cannot run {command[0]!r} ({error.strerror}): check the program's command") from None
        return cls(started)

    async def wait(self) -> Ended:
        """How it ended; a code other than 0 is a failure, with the last line that it wrote to standard error."""
        code = await self._process.wait()
        await self._drain()
        output, errors = (self._tails[name].decode("utf-8", "replace") for name in ("stdout", "stderr"))
        ended = Ended(exit_code=code, output=output)
        if code == 0:
            return ended
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = Ended(output=errors).last_line[:300]
        failure = f"the program ended with {how}{f': {said}' if said else ''}"
        return Ended(exit_code=code, output=output, failure=failure, crashed=True)

    async def stop(self) -> None:
        """Ends the whole group, by force after a grace period."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._process.wait()
        self._signal(signal.SIGKILL)
        await self._process.wait()
        await self._drain()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _drain(self) -> None:
        """Waits for the rest of its output; a grandchild may hold the pipe open, and is not waited for."""
        await asyncio.wait(self._readers, timeout=_GRACE_SECONDS)
        for reader in self._readers:
            reader.cancel()

    async def _read(self, name: str, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None, "both are pipes"
        while chunk := await stream.read(2**16):
            self._tails[name] = (self._tails[name] + chunk)[-_KEPT_BYTES:]
