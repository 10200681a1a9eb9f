"""One server of an engine: the conversations that are at it, the weights that it has, and its process if we started it.

Invariant: `version` is that of weights which were checked by a probe after the server had loaded them, or None.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnwise.engines.base import Sampling
from turnwise.engines.probe import WeightProbe
from turnwise.engines.servers.wire import TokenServer
from turnwise.engines.vllm.process import ServerProcess
from turnwise.errors import EngineError
from turnwise.http import HttpError

_logger = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.5
_MAX_FAILURES: Final = 3
"""In a row, without a completion in between."""
_WAITS: Final = (0.0, 1.0, 2.0, 4.0)
"""Seconds before each attempt to reach a server again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The newest weights, in a folder that servers read."""

    folder: Path
    version: int
    expected: tuple[float, ...]
    """What the probe's text has by them: a server that comes back during an update cannot be held to the model."""


class Replica:
    """A server with its state; `connect` makes the client for an address."""

    def __init__(
        self,
        connect: Callable[[str], TokenServer],
        probe: WeightProbe,
        *,
        url: str | None = None,
        process: ServerProcess | None = None,
        start_seconds: float = 600.0,
    ) -> None:
        """Either the address of a server that runs, or the process that makes one."""
        assert (url is None) != (process is None), "started by us, or by others"
        self._connect, self._probe, self._process, self._start_seconds = connect, probe, process, start_seconds
        self._server = connect(url) if url is not None else None
        self._restoring: asyncio.Task[None] | None = None
        self._failures = 0
        self.version: int | None = None
        self.sessions = 0
        self.lost = False
        """Whether it is gone for good, or until it takes weights again: only a server that others started."""
        self.restarts = 0

    @property
    def server(self) -> TokenServer:
        assert self._server is not None, "started"
        return self._server

    @property
    def is_ours(self) -> bool:
        return self._process is not None

    def launch(self, weights: Weights) -> None:
        """Starts the process, if it is ours; it answers later."""
        if self._process is not None:
            self._server = self._connect(self._process.start(weights.folder))

    async def wait_until_ready(self) -> None:
        """Waits until the server answers; only one that is ours gets time to start."""
        began = time.monotonic()
        while True:
            try:
                await self.server.complete(self._probe.ids, Sampling(max_tokens=1, stop_ids=()), room=1)
                return
            except HttpError as error:
                if self._process is None:
                    raise EngineError(
                        f"{self.server.url}: cannot be reached ({error}); check engine.servers"
                    ) from error
                if (ended := self._process.ended) is not None:
                    raise EngineError(
                        f"the vLLM server did not start, {ended} (its log: {self._process.log})"
                    ) from error
                if time.monotonic() - began > self._start_seconds:
                    self._process.stop()
                    raise EngineError(
                        f"the vLLM server did not answer in {self._start_seconds:g} seconds (its log: "
                        f"{self._process.log}); raise engine.start_seconds"
                    ) from error
            await asyncio.sleep(_POLL_SECONDS)

    async def load(self, weights: Weights) -> None:
        """Gives the server new weights and checks that it samples from them."""
        self.version = None
        await self.server.load(weights.folder, weights.version)
        found = await self.server.score(self._probe.ids)
        self._probe.check(found, weights.expected, version=weights.version, where=self.server.url)
        self.version = weights.version

    def answered(self) -> None:
        """Notes a completion: whatever failed before has passed."""
        self._failures = 0

    async def restore(self, newest: Callable[[], Weights], reason: str) -> None:
        """Makes a server that died, or lost its weights, good again; requests that ask for it at once share the work.

        Raises EngineError where it cannot be: a server that others started is gone, or ours failed again and again.
        """
        loop = asyncio.get_running_loop()
        if self._restoring is None or self._restoring.done() or self._restoring.get_loop() is not loop:
            self._restoring = loop.create_task(self._restore(newest, reason))
        await asyncio.shield(self._restoring)

    async def _restore(self, newest: Callable[[], Weights], reason: str) -> None:
        self.version = None
        self._failures += 1
        if self._failures > _MAX_FAILURES:
            raise EngineError(f"{self.server.url}: failed {self._failures} times in a row, last: {reason}")
        for wait in _WAITS:
            await asyncio.sleep(wait)
            if self._process is not None and (ended := self._process.ended) is not None:
                self.restarts += 1
                self.launch(newest())
                _logger.warning("a vLLM server ended (%s); starting it again at %s", ended, self.server.url)
                await self.wait_until_ready()
            try:
                weights = newest()
                await self.load(weights)
            except HttpError as error:
                reason = str(error)
            else:
                _logger.warning("%s has the weights of version %d again", self.server.url, weights.version)
                return
        raise EngineError(f"{self.server.url}: is gone ({reason})")
