"""An engine of one or more servers: each conversation stays at its server, all get the same weights.

Invariant: a completion's versions are of weights that this engine loaded and checked. A server that died, or that has
other weights, is named in one line and made good before it samples again, and the turn is sampled anew with the same
seed; a turn is never lost.
"""

import asyncio
import logging
import shutil
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count

import torch
from transformers import PreTrainedModel

from turnwise.engines.base import Completion, EngineStats, Sampling
from turnwise.engines.probe import WeightProbe
from turnwise.engines.servers.export import make_weights_folder, write_weights
from turnwise.engines.servers.replica import Replica, Weights
from turnwise.engines.servers.start import make_replicas
from turnwise.engines.servers.wire import Reply
from turnwise.engines.settings import OpenAIEngineSettings, VLLMEngineSettings
from turnwise.engines.vllm.arguments import choose_dtype, probe_dtype
from turnwise.engines.vllm.sampling import require_room, to_completion
from turnwise.engines.weights import copy_weights, count_tokens, resolve_context_limit
from turnwise.errors import EngineError
from turnwise.http import HttpError
from turnwise.ledger import IDLE, Ledger

_logger = logging.getLogger(__name__)


class ServerEngine:
    """Samples at servers from weights that it writes out of `model`, at first and at every `load`."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        settings: VLLMEngineSettings | OpenAIEngineSettings,
        context_limit: int | None = None,
        autocast: torch.dtype | None = None,
        ledger: Ledger | None = None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """Starts or asks all servers, and gives them the model's weights: what cannot work fails here."""
        self._model, self._ledger = model, ledger or Ledger()
        self._context_limit = resolve_context_limit(model, context_limit)
        kind = settings if isinstance(settings, VLLMEngineSettings) else VLLMEngineSettings()
        self._dtype: torch.dtype = getattr(torch, choose_dtype(kind, model, autocast))
        self._probe = WeightProbe(
            model,
            prompt_ids,
            dtype=probe_dtype(kind, model, autocast),
            context_limit=self._context_limit,
            autocast=autocast,
        )
        self._folder = make_weights_folder(settings.weights_folder)
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = count()
        self._weights = self._write(0)
        self._loaded = [0]
        """The versions of all weights so far, in order."""
        self._slots = settings.slots if isinstance(settings, OpenAIEngineSettings) else None
        self._limit: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._replicas = make_replicas(
            settings, self._probe, logs=self._folder, dtype=self._dtype, context_limit=self._context_limit
        )
        self._homes: dict[str, Replica] = {}
        """The server of each conversation."""
        self._counts: Counter[str] = Counter()
        self._under_way, self._began, self._seconds = 0, 0.0, 0.0
        _run(self._start())

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        return self._context_limit

    @property
    def stats(self) -> EngineStats:
        """The work done so far; all time with a turn under way counts as decoding."""
        return EngineStats(**self._counts, decode_seconds=self._seconds)

    @property
    def restarts(self) -> int:
        """How often a server of ours died and was started again."""
        return sum(replica.restarts for replica in self._replicas)

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Samples one turn after `prompt_ids` at the conversation's server, whose prefix cache has earlier turns."""
        room = require_room(
            session, prompt_ids, context_limit=self._context_limit, vocabulary=count_tokens(self._model)
        )
        async with self._waiting():
            reply, asked = await self._sample(session, prompt_ids, sampling, room)
        self._counts.update(
            prefill_tokens=len(prompt_ids) - reply.cached,
            reused_tokens=reply.cached,
            decode_tokens=max(len(reply.ids) - 1, 0),
        )
        versions = tuple((start, int(version)) for start, version in reply.versions) or ((0, asked),)
        return to_completion(
            session, reply.ids, reply.logprobs, reason=reply.reason, versions=versions, stop_ids=sampling.stop_ids
        )

    async def end(self, session: str) -> None:
        """Forgets a conversation; its cache is the server's to keep or reuse."""
        if home := self._homes.pop(session, None):
            home.sessions -= 1

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Gives all servers new weights and checks each; turns under way go on with them."""
        with self._ledger.wait_for("load"):
            copy_weights(self._model, weights)
            old, self._weights = self._weights, await asyncio.to_thread(self._write, version)
            self._loaded.append(version)
            await asyncio.gather(*map(self._load_one, self._replicas))
            shutil.rmtree(old.folder, ignore_errors=True)

    async def _start(self) -> None:
        for replica in self._replicas:
            replica.launch(self._weights)
        await asyncio.gather(*(self._begin(replica) for replica in self._replicas))

    async def _begin(self, replica: Replica) -> None:
        await replica.wait_until_ready()
        try:
            await replica.load(self._weights)
        except HttpError as error:
            raise EngineError(f"{replica.server.url}: did not load weights ({error})") from error

    def _write(self, version: int) -> Weights:
        folder = self._folder / f"{next(self._numbers)}"
        write_weights(self._model, folder, dtype=self._dtype)
        return Weights(folder=folder, version=version, expected=tuple(self._probe.expect()))

    async def _load_one(self, replica: Replica) -> None:
        try:
            await replica.load(self._weights)
        except HttpError as error:
            if not replica.lost:
                await self._recover(replica, str(error))
            return
        if replica.lost:
            replica.lost = False
            _logger.warning("%s is back", replica.server.url)

    async def _sample(
        self, session: str, prompt_ids: Sequence[int], sampling: Sampling, room: int
    ) -> tuple[Reply, int]:
        """A turn and the version that was in force when it was asked for, from a server that has the right weights."""
        while True:
            replica, since = self._home(session), len(self._loaded) - 1
            try:
                reply = await replica.server.complete(prompt_ids, sampling, room=room)
            except HttpError as error:
                await self._recover(replica, str(error))
                continue
            known = {str(version) for version in self._loaded[since:]}
            strange = [version for _, version in reply.versions if version not in known]
            if not strange:
                replica.answered()
                return reply, self._loaded[since]
            await self._recover(replica, f"sampled with weights of version '{strange[0]}', not {self._weights.version}")

    def _home(self, session: str) -> Replica:
        """The conversation's server; a new conversation, or one whose server is lost, gets the least busy."""
        home = self._homes.get(session)
        if home is None or home.lost:
            if home is not None:
                home.sessions -= 1
            home = min((one for one in self._replicas if not one.lost), key=lambda one: one.sessions)
            home.sessions += 1
            self._homes[session] = home
        return home

    async def _recover(self, replica: Replica, reason: str) -> None:
        """Makes a server good again; one of others' that cannot be is lost, until it takes weights again."""
        try:
            await replica.restore(lambda: self._weights, reason)
        except EngineError as error:
            if replica.is_ours or all(one.lost for one in self._replicas if one is not replica):
                raise
            if not replica.lost:
                replica.lost = True
                _logger.warning("%s; its conversations go on at the other servers", error)

    @asynccontextmanager
    async def _waiting(self) -> AsyncIterator[None]:
        """Charges the event loop's idle time to decoding while a turn is under way, within the limit of requests."""
        if not self._under_way:
            self._began = time.perf_counter()
        self._under_way += 1
        self._ledger.idle = "decode"
        try:
            async with self._semaphore():
                yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._seconds += time.perf_counter() - self._began
                self._ledger.idle = IDLE

    def _semaphore(self) -> asyncio.Semaphore:
        """The limit of requests under way in the running event loop."""
        loop = asyncio.get_running_loop()
        if self._limit is None or self._limit[0] is not loop:
            self._limit = loop, asyncio.Semaphore(self._slots or 2**31)
        return self._limit[1]


def _run(work: Coroutine[object, object, None]) -> None:
    """Runs a coroutine to its end, also from within an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
