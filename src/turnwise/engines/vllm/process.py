"""A vLLM server that we start: one process group, its port and its log.

Invariant: when the engine that owns it is gone, or this process is, so is every process of the server.
"""

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODULE: Final = "turnwise.engines.vllm.serve"
_GRACE_SECONDS: Final = 5.0
_ERROR_CHARS: Final = 300


class ServerProcess:
    """`ServerProcess(["--dtype", "float32"], {"CUDA_VISIBLE_DEVICES": "1"}, log)`; `start` chooses its port."""

    def __init__(
        self, flags: Sequence[str], environment: Mapping[str, str], log: Path, *, module: str = _MODULE
    ) -> None:
        self._flags, self._environment, self.log, self._module = flags, environment, log, module
        self._running: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _end_all, self._running)

    def start(self, model: Path) -> str:
        """Starts it on a folder, again if it ran before, and returns its address; it takes a while to answer there."""
        self.stop()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "VLLM_SERVER_DEV_MODE": "1"}
        where = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, *self._flags, *where],
                env={**os.environ, **own, **self._environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        return f"http://127.0.0.1:{port}"

    @property
    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._running[-1].poll() if self._running else 0
        if code is None:
            return None
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = self._last_error() if code != -signal.SIGKILL else ""  # then it had no time to tell
        return f"{how}{f': {said}' if said else ''}"

    def stop(self) -> None:
        """Ends the whole group."""
        _end_all(self._running)

    def _last_error(self) -> str:
        """The last line of its log that tells of an error, or the last line at all."""
        try:
            lines = [line.strip() for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            return ""
        told = [line for line in lines if "Error" in line] or lines
        return told[-1][-_ERROR_CHARS:] if told else ""


def _end_all(processes: "list[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    processes.clear()
