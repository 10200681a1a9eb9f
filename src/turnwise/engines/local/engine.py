"""The local engine: continuous batching in process, on the learner's own weights.

Invariant: admit, prefill, decode and deliver all run in one task of the caller's event loop, and episodes run between
two of its steps; so the order of events is fixed if tools run inline. On a GPU the next forwards are launched before
the tokens of the previous ones are read; a token sampled past the end of its turn is dropped.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from transformers import PreTrainedModel

from turnwise.engines.base import Completion, EngineStats, Sampling
from turnwise.engines.local.runner import ModelRunner, PrefillChunk
from turnwise.engines.local.sampling import PendingTokens, needed_work
from turnwise.engines.local.slots import (
    PrefixCopy,
    Request,
    Slot,
    SlotTable,
    keys_of_next_token,
    split_by_budget,
)
from turnwise.engines.settings import LocalEngineSettings
from turnwise.engines.weights import copy_weights, resolve_context_limit, sampled_model
from turnwise.errors import ModelError
from turnwise.ledger import Ledger

_MANY_TURNS, _FAR_AHEAD = 32, 4
"""With this many turns, so many forwards are in flight: the host runs the episodes of some while a GPU samples others.
With fewer, one: what is sampled past the end of a turn delays the next."""
_DELIVERED_AT_ONCE = 64
"""Up to this many finished turns are delivered together. When more end at the same step, half are, so that a GPU
prefills their next turns while the host runs the other episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A launched forward: the turns it samples for, and its tokens on their way to the host."""

    turns: list[tuple[Slot, Request]]
    columns: Sequence[int]
    """Where in `pending` the token of each is."""
    pending: PendingTokens
    decoded: bool
    """Whether it was a decode step, which also wrote each turn's last token to the cache."""


class LocalEngine:
    """Samples from a Hugging Face decoder-only model, or a LoRA-wrapped one, without copying its weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        settings: LocalEngineSettings,
        context_limit: int | None = None,
        autocast: torch.dtype | None = None,
        ledger: Ledger | None = None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """`context_limit` defaults to the model's positions; `autocast` runs matmuls and the cache in that type.

        The forward is checked on `prompt_ids`, too: text as it is going to read.
        """
        self._model = model
        self._ledger = ledger or Ledger()
        self._settings = settings
        self._context_limit = resolve_context_limit(model, context_limit)
        self._runner = ModelRunner(
            sampled_model(model),
            slots=settings.slots,
            context_limit=self._context_limit,
            autocast=autocast,
            prompt_ids=prompt_ids,
        )
        self._table = SlotTable(settings.slots)
        self._queue: deque[Request] = deque()
        self._arrivals: list[Slot] = []
        """Slots whose turn has not been prefilled yet."""
        self._in_flight: deque[InFlight] = deque()
        self._finished: deque[Slot] = deque()
        """Slots whose turn is complete but not delivered yet."""
        self._delivered_at_once = _DELIVERED_AT_ONCE if self._runner.runs_ahead else settings.slots
        self._task: asyncio.Task[None] | None = None
        self._version = 0
        self._counts: Counter[str] = Counter()
        self._seconds = {"prefill": 0.0, "decode": 0.0}

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        return self._context_limit

    @property
    def slow_reason(self) -> str | None:
        """Why the model's own forward samples, many times slower than the fused one; None if the fused one does."""
        return self._runner.slow_reason

    @property
    def stats(self) -> EngineStats:
        """The work done so far."""
        return EngineStats(
            **self._counts,
            evictions=self._table.evictions,
            prefill_seconds=self._seconds["prefill"],
            decode_seconds=self._seconds["decode"],
        )

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Samples one turn after `prompt_ids`; only what the session's cache lacks is computed."""
        room = self._context_limit - len(prompt_ids)
        if not prompt_ids:
            raise ModelError(f"session '{session}': the prompt is empty; a model needs a token to start from")
        if room < 1:
            raise ModelError(
                f"session '{session}': a prompt of {len(prompt_ids)} tokens leaves no room to answer in a context of "
                f"{self._context_limit}; shorten it or raise the context limit"
            )
        assert sampling.max_tokens > 0, "a turn has room for a token"
        request = Request(
            session=session,
            prompt=list(prompt_ids),
            sampling=sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room),
            future=asyncio.get_running_loop().create_future(),
        )
        self._wake()
        self._queue.append(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._withdraw(request)
            raise

    async def end(self, session: str) -> None:
        """Forgets a conversation; a turn of it that is being sampled fails."""
        slot = self._table.find(session)
        running = [slot.request] if slot is not None and slot.request is not None else []
        for request in [*running, *(request for request in self._queue if request.session == session)]:
            self._withdraw(request)
            request.fail(ModelError(f"session '{session}' was ended during a turn of its own"))
        self._table.forget(session)

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Loads weights, copying only tensors that are not the model's own already, and drops every cache.

        A turn that is being sampled continues with the new weights after its context is prefilled again, so that each
        token's logprob is that of one version of the model, given all tokens before it.
        """
        self._collect(0)
        self._deliver(len(self._finished))
        with self._ledger.spend("load"):
            copy_weights(self._model, weights)
            self._version = version
            self._runner.refresh()
            self._table.drop_caches()
            self._arrivals = self._table.in_use

    def _wake(self) -> None:
        """Makes sure that the sampling task runs, in the caller's event loop."""
        loop = asyncio.get_running_loop()
        if self._task is not None and not self._task.done():
            if self._task.get_loop() is loop:
                return
            self._reset()
        self._task = loop.create_task(self._drain())
        self._task.add_done_callback(self._settle)

    async def _drain(self) -> None:
        while self._queue or self._table.busy:
            self._admit()
            self._prefill()
            if not self._finished:  # else more turns are to be delivered, and their next prompts join this batch
                ahead = self._count_ahead()
                self._collect(ahead)
                self._collect(ahead if self._decode() else 0)
            self._deliver(max(self._delivered_at_once, len(self._finished) // 2))
            await asyncio.sleep(0)
        self._collect(0)

    def _count_ahead(self) -> int:
        """How many forwards may be in flight while the host continues."""
        if not self._runner.runs_ahead:
            return 0
        return _FAR_AHEAD if len(self._table.in_use) >= _MANY_TURNS else 1

    def _settle(self, task: asyncio.Task[None]) -> None:
        """Passes a failure or cancellation of the sampling task on to every waiting request."""
        if task.cancelled():
            for request in self._requests():
                request.future.cancel()
        elif failure := task.exception():
            for request in self._requests():
                request.fail(failure)
            self._reset()

    def _reset(self) -> None:
        """Drops all requests and all caches, whose state is unknown after a failure."""
        self._queue.clear()
        self._arrivals.clear()
        self._in_flight.clear()
        self._finished.clear()
        self._table.clear()
        self._runner.refresh()

    def _requests(self) -> list[Request]:
        running = [slot.request for slot in self._table.slots if slot.request is not None]
        return [*self._queue, *running]

    def _withdraw(self, request: Request) -> None:
        """Removes a request from its slot or from the queue."""
        slot = self._table.find(request.session)
        if slot is not None and slot.request is request:
            if slot in self._arrivals:
                self._arrivals.remove(slot)
            if slot in self._finished:
                self._finished.remove(slot)
            self._runner.deactivate([slot.index])
            self._table.vacate(slot)
        elif request in self._queue:
            self._queue.remove(request)

    def _admit(self) -> None:
        """Assigns queued requests to slots: first those whose session has one, then the others in order of arrival."""
        if not self._queue:
            return
        with self._timed("prefill"):
            self._assign_slots()

    def _assign_slots(self) -> None:
        waiting: list[Request] = []
        reused = 0
        for request in self._queue:
            slot = self._table.find(request.session)
            if slot is not None and slot.request is None:
                reused += self._start(slot, request)
            else:
                waiting.append(request)
        self._queue.clear()
        idle = iter(self._table.idle() if waiting else ())
        for request in waiting:
            # A session asks for one turn at a time; should two come at once, the second waits for the first.
            slot = None if self._table.find(request.session) else next(idle, None)
            if slot is None:
                self._queue.append(request)
            else:
                self._table.assign(slot, request.session)
                reused += self._start(slot, request)
        self._count(reused_tokens=reused)

    def _start(self, slot: Slot, request: Request) -> int:
        self._arrivals.append(slot)
        return self._table.start(slot, request)

    def _prefill(self) -> None:
        """Computes what the caches of the arrivals lack and samples the first token of each turn."""
        if not self._arrivals:
            return
        arrivals, self._arrivals = self._arrivals, []
        with self._timed("prefill"):
            for wave in self._table.waves(arrivals):
                self._copy_prefixes(wave.copies)
                for slot in wave.slots:
                    self._prefill_chunks(slot)
                for batch in split_by_budget(wave.slots, self._settings.prefill_tokens, padded=self._runner.pads):
                    self._prefill_last(batch)

    def _copy_prefixes(self, copies: Sequence[PrefixCopy]) -> None:
        if not copies:
            return
        donors = [copy.donor.index for copy in copies]
        self._runner.copy(donors, [copy.slot.index for copy in copies], max(copy.length for copy in copies))
        for copy in copies:
            self._count(reused_tokens=copy.length - len(copy.slot.cached_ids))
            copy.slot.cached_ids = copy.slot.needed_ids()[: copy.length]

    def _prefill_chunks(self, slot: Slot) -> None:
        """Prefills a prompt that exceeds the token budget of one forward, up to its last chunk."""
        budget = self._settings.prefill_tokens
        while slot.count_missing() > budget:
            ids = slot.missing_ids()[:budget]
            self._runner.prefill_without_sampling([PrefillChunk(slot=slot.index, start=len(slot.cached_ids), ids=ids)])
            slot.cached_ids += ids
            self._count(prefill_tokens=len(ids))

    def _prefill_last(self, slots: Sequence[Slot]) -> None:
        """Prefills the rest of these prompts in one forward and samples after each."""
        chunks = [PrefillChunk(slot=slot.index, start=len(slot.cached_ids), ids=slot.missing_ids()) for slot in slots]
        samplings, drawn = [slot.turn.sampling for slot in slots], [len(slot.turn.ids) for slot in slots]
        pending = self._runner.prefill(chunks, samplings, drawn, **needed_work(samplings))
        for slot, chunk in zip(slots, chunks, strict=True):
            slot.cached_ids += chunk.ids
        tokens = sum(len(chunk.ids) for chunk in chunks)
        self._count(prefill_tokens=tokens, prefill_padding=self._runner.count_padding(chunks))
        self._launch([(slot, slot.turn) for slot in slots], range(len(slots)), pending, decoded=False)

    def _decode(self) -> bool:
        """Launches one more token for every unfinished turn; False if there is none."""
        with self._timed("decode"):
            self._compact()
            turns = self._table.unfinished
            if not turns:
                return False
            columns = [slot.index for slot, _ in turns]
            count = columns[-1] + 1
            work = needed_work([turn.sampling for _, turn in turns])
            pending = self._runner.decode(count, max(map(keys_of_next_token, turns)), **work)
            self._count(decode_steps=1, slot_steps=count, idle_slot_steps=count - len(turns))
            self._launch(turns, columns, pending, decoded=True)
        return True

    def _compact(self) -> None:
        """Moves the slots in use to the front, once that shortens the batch by half."""
        swaps = self._table.swaps()
        if swaps:
            length = max(keys_of_next_token((slot, slot.request)) for pair in swaps for slot in pair)
            self._runner.swap([slot.index for slot, _ in swaps], [slot.index for _, slot in swaps], length)
            for one, other in swaps:
                self._table.swap(one, other)

    def _launch(
        self, turns: list[tuple[Slot, Request]], columns: Sequence[int], pending: PendingTokens, *, decoded: bool
    ) -> None:
        for _, turn in turns:
            turn.launched += 1
        self._in_flight.append(InFlight(turns=turns, columns=columns, pending=pending, decoded=decoded))

    def _collect(self, left: int) -> None:
        """Takes the tokens of all forwards in flight but the newest `left`."""
        while len(self._in_flight) > left:
            forward = self._in_flight.popleft()
            with self._timed("decode" if forward.decoded else "prefill"):
                self._append_tokens(forward)

    def _append_tokens(self, forward: InFlight) -> None:
        """Appends the sampled token to each turn of a forward, and notes which turns that finishes."""
        tokens, logprobs = forward.pending.wait()
        decoded, version, appended, sum_of_logprobs = forward.decoded, self._version, 0, 0.0
        for (slot, turn), column in zip(forward.turns, forward.columns, strict=True):
            if turn.ended or slot.request is not turn:
                continue  # the turn ended or was withdrawn while the forward ran
            if decoded:
                slot.cached_ids.append(turn.ids[-1])
            logprob = logprobs[column]
            if turn.append(tokens[column], logprob, version):
                self._finished.append(slot)
            appended += 1
            sum_of_logprobs += logprob
        if not math.isfinite(sum_of_logprobs):
            raise ModelError("the model's logits are not finite: lower the learning rate or load earlier weights")
        if forward.decoded:
            self._count(decode_tokens=appended, idle_slot_steps=len(forward.turns) - appended)

    def _deliver(self, most: int) -> None:
        """Resolves the futures of at most this many finished turns; their sessions keep their slots."""
        if not self._finished:
            return
        with self._timed("decode"):
            slots = [self._finished.popleft() for _ in range(min(most, len(self._finished)))]
            self._runner.deactivate([slot.index for slot in slots])
            for slot in slots:
                turn = slot.turn
                self._table.vacate(slot)
                turn.complete()

    @contextmanager
    def _timed(self, account: Literal["prefill", "decode"]) -> Iterator[None]:
        began = time.perf_counter()
        with self._ledger.spend(account):
            yield
        self._seconds[account] += time.perf_counter() - began

    def _count(self, **amounts: int) -> None:
        """Adds to the statistics of these names."""
        for name, amount in amounts.items():
            self._counts[name] += amount
