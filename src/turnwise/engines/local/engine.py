"""The local engine: continuous batched sampling in process, on the learner's own weights.

Invariant: everything happens in one task of the caller's event loop, admit, prefill, decode, resolve, and
between two steps the episodes run; so with tools that run inline the order of all things is fixed. A GPU decodes
meanwhile: a forward is launched before the tokens of the one before it are looked at, and what it sampled for a turn
that had ended is left out.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal, TypedDict

import torch
from pydantic import PositiveInt
from transformers import PreTrainedModel

from turnwise.compute.device import Answer
from turnwise.engines.base import Completion, Sampling
from turnwise.engines.local.runner import Feed, Lanes
from turnwise.engines.local.slots import Loan, Request, Slot, SlotTable
from turnwise.engines.local.weights import copy_weights, resolve_context_limit, sampled_model
from turnwise.errors import ModelError
from turnwise.ledger import Ledger
from turnwise.settings import Settings

_PORTION = 64
"""Turns that are always handed over at once. When more end together, a GPU reads what the first half goes on with
while the host sees to the others."""


class EngineSettings(Settings):
    """How the local engine batches."""

    slots: PositiveInt = 64
    """Conversations that are sampled, or keep their keys and values, at the same time."""
    prefill_tokens: PositiveInt = 8192
    """The most prompt tokens, padding included, that one forward reads; longer prompts are read in pieces."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """What an engine has done since it was made."""

    prefill_tokens: int = 0
    """Prompt tokens computed."""
    reused_tokens: int = 0
    """Prompt tokens found in a cache instead: the session's own, or one with the same beginning."""
    decode_tokens: int = 0
    """Tokens sampled by decode steps; each turn's first comes from its prefill."""
    decode_steps: int = 0
    lane_steps: int = 0
    """Lanes of all decode steps together, whether or not they had a turn to sample."""
    idle_lanes: int = 0
    """Those among them that had none: between the lanes in use, or run ahead of a turn's end."""
    prefill_padding: int = 0
    """What prefills computed beside prompt tokens, to make rows even or to be of a size that is replayed."""
    evictions: int = 0
    """Idle sessions that lost their cache to another and will be read anew."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flight:
    """A forward that was launched: for whom, and where its tokens come back."""

    slots: list[Slot]
    turns: list[Request]
    lanes: list[int] | None
    """Where in the answer each slot's token is; None when they are in order."""
    answer: Answer
    decoded: bool
    """It fed the tokens that were sampled last, which the slots hold then."""


class _Needs(TypedDict):
    """Which sampling work any turn of a forward asks for."""

    greedy: bool
    truncate: bool


class LocalEngine:
    """Samples from a Hugging Face decoder-only model, or a LoRA-wrapped one, without copying its weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        settings: EngineSettings,
        context_limit: int | None = None,
        autocast: torch.dtype | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`context_limit` defaults to the model's positions; `autocast` runs matmuls and the cache in that type."""
        self._model = model
        self._ledger = ledger or Ledger()
        self._settings = settings
        self._context_limit = resolve_context_limit(model, context_limit)
        self._lanes = Lanes(
            sampled_model(model), count=settings.slots, context_limit=self._context_limit, autocast=autocast
        )
        self._table = SlotTable(settings.slots)
        self._queue: deque[Request] = deque()
        self._arrivals: list[Slot] = []
        self._flights: deque[_Flight] = deque()
        self._ended: deque[Slot] = deque()
        """Slots whose turn is complete, and waits to be handed over."""
        self._ahead = 1 if self._lanes.runs_ahead else 0
        """How many forwards may be under way while the host goes on."""
        self._portion = _PORTION if self._lanes.runs_ahead else settings.slots
        self._task: asyncio.Task[None] | None = None
        self._version = 0
        self._counters = Counters()

    @property
    def context_limit(self) -> int:
        """The most tokens, prompt and completion together, that one conversation may hold."""
        return self._context_limit

    @property
    def counters(self) -> Counters:
        """What was done so far, as a copy; subtract two readings to cost a rollout."""
        return replace(self._counters, evictions=self._table.evictions)

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Samples one turn after `prompt_ids`; only what the session's cache does not hold is computed."""
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
        """Forgets a conversation; a turn it still has under way fails."""
        slot = self._table.find(session)
        seated = [slot.request] if slot is not None and slot.request is not None else []
        for request in [*seated, *(request for request in self._queue if request.session == session)]:
            self._withdraw(request)
            request.fail(ModelError(f"session '{session}' was ended during a turn of its own"))
        self._table.forget(session)

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Takes weights, copying only those that are not the model's own tensors already, and drops every cache.

        A turn under way goes on with the new weights, its context read anew, and keeps the version of its start.
        """
        self._land(0)
        self._hand_over(len(self._ended))
        with self._ledger.spend("load"):
            copy_weights(self._model, weights)
            self._version = version
            self._lanes.refresh()
            self._table.drop_caches()
            self._arrivals = self._table.in_use

    def _wake(self) -> None:
        """Makes sure that the sampling task runs, in the caller's loop."""
        loop = asyncio.get_running_loop()
        if self._task is not None and not self._task.done():
            if self._task.get_loop() is loop:
                return
            self._abandon()
        self._task = loop.create_task(self._drain())
        self._task.add_done_callback(self._settle)

    async def _drain(self) -> None:
        while self._queue or self._table.in_use:
            self._admit()
            self._prefill()
            if not self._ended:  # else some were left over, and will have prompts that can be read with these
                self._land(self._ahead)
                self._land(self._ahead if self._decode() else 0)
            self._hand_over(max(self._portion, len(self._ended) // 2))
            await asyncio.sleep(0)
        self._land(0)

    def _settle(self, task: asyncio.Task[None]) -> None:
        """Passes what ended the sampling task, if it did not simply run dry, on to everyone who waits."""
        if task.cancelled():
            for request in self._requests():
                request.future.cancel()
        elif failure := task.exception():
            for request in self._requests():
                request.fail(failure)
            self._abandon()

    def _abandon(self) -> None:
        """Drops all requests and all caches, whose state nobody can vouch for any more."""
        self._queue.clear()
        self._arrivals.clear()
        self._flights.clear()
        self._ended.clear()
        self._table.clear()
        self._lanes.refresh()

    def _requests(self) -> list[Request]:
        seated = [slot.request for slot in self._table.slots if slot.request is not None]
        return [*self._queue, *seated]

    def _withdraw(self, request: Request) -> None:
        """Takes a request out, whether it sits in a slot or still waits for one."""
        slot = self._table.find(request.session)
        if slot is not None and slot.request is request:
            if slot in self._arrivals:
                self._arrivals.remove(slot)
            if slot in self._ended:
                self._ended.remove(slot)
            self._lanes.rest([slot.lane])
            self._table.vacate(slot)
        elif request in self._queue:
            self._queue.remove(request)

    def _admit(self) -> None:
        """Seats waiting requests: first those whose session has a slot, then the others as they came."""
        waiting: list[Request] = []
        reused = 0
        for request in self._queue:
            slot = self._table.find(request.session)
            if slot is not None and slot.request is None:
                reused += self._seat(slot, request)
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
                self._table.give(slot, request.session)
                reused += self._seat(slot, request)
        self._count(reused_tokens=reused)

    def _seat(self, slot: Slot, request: Request) -> int:
        self._arrivals.append(slot)
        return self._table.seat(slot, request)

    def _prefill(self) -> None:
        """Reads what the arrivals miss and samples the first token of each."""
        if not self._arrivals:
            return
        arrivals, self._arrivals = self._arrivals, []
        with self._spend("prefill"):
            for wave in self._table.waves(arrivals):
                self._lend(wave.loans)
                for slot in wave.slots:
                    self._read_ahead(slot)
                for batch in _batches(wave.slots, self._settings.prefill_tokens, padded=self._lanes.pads):
                    self._begin(batch)

    def _lend(self, loans: Sequence[Loan]) -> None:
        if not loans:
            return
        donors = [loan.donor.lane for loan in loans]
        self._lanes.copy(donors, [loan.slot.lane for loan in loans], max(loan.length for loan in loans))
        for loan in loans:
            self._count(reused_tokens=loan.length - len(loan.slot.held))
            loan.slot.held = loan.slot.wanted()[: loan.length]

    def _read_ahead(self, slot: Slot) -> None:
        """Reads a prompt that is over the budget of one forward, up to its last piece."""
        budget = self._settings.prefill_tokens
        while slot.count_missing() > budget:
            piece = slot.missing()[:budget]
            self._lanes.read([Feed(lane=slot.lane, start=len(slot.held), ids=piece)])
            slot.held += piece
            self._count(prefill_tokens=len(piece))

    def _begin(self, slots: Sequence[Slot]) -> None:
        """Reads the rest of these prompts in one forward and samples after each."""
        feeds = [Feed(lane=slot.lane, start=len(slot.held), ids=slot.missing()) for slot in slots]
        samplings, drawn = [slot.turn.sampling for slot in slots], [len(slot.turn.ids) for slot in slots]
        answer = self._lanes.prefill(feeds, samplings, drawn, **_needs(slots))
        for slot, feed in zip(slots, feeds, strict=True):
            slot.held += feed.ids
        read = sum(len(feed.ids) for feed in feeds)
        self._count(prefill_tokens=read, prefill_padding=self._lanes.count_padding(feeds))
        self._launch(slots, None, answer, decoded=False)

    def _decode(self) -> bool:
        """Samples one more token for every turn under way; False if there is none to sample."""
        self._pack()
        slots = [slot for slot in self._table.in_use if not slot.turn.all_launched]
        if not slots:
            return False
        lanes = slots[-1].lane + 1
        with self._spend("decode"):
            answer = self._lanes.decode(lanes, max(map(_reach, slots)), **_needs(slots))
            self._count(decode_steps=1, lane_steps=lanes, idle_lanes=lanes - len(slots))
            self._launch(slots, [slot.lane for slot in slots], answer, decoded=True)
        return True

    def _pack(self) -> None:
        swaps = self._table.swaps()
        if swaps:
            length = max(_reach(slot) for pair in swaps for slot in pair)
            self._lanes.exchange([slot.lane for slot, _ in swaps], [slot.lane for _, slot in swaps], length)
            for one, other in swaps:
                self._table.exchange(one, other)

    def _launch(self, slots: Sequence[Slot], lanes: list[int] | None, answer: Answer, *, decoded: bool) -> None:
        turns = [slot.turn for slot in slots]
        for turn in turns:
            turn.launched += 1
        self._flights.append(_Flight(slots=list(slots), turns=turns, lanes=lanes, answer=answer, decoded=decoded))

    def _land(self, in_flight: int) -> None:
        """Takes the tokens of all forwards but the newest `in_flight`."""
        while len(self._flights) > in_flight:
            flight = self._flights.popleft()
            with self._spend("decode" if flight.decoded else "prefill"):
                self._take(flight)

    def _take(self, flight: _Flight) -> None:
        """Adds the token that a forward sampled to each of its turns, and notes which turns that ends."""
        tokens, logprobs = flight.answer.wait()
        lanes = range(len(tokens)) if flight.lanes is None else flight.lanes
        taken, sum_of_logprobs = 0, 0.0
        for slot, turn, lane in zip(flight.slots, flight.turns, lanes, strict=True):
            if turn.ended or slot.request is not turn:
                continue  # it ended, or was withdrawn, while the forward ran, and has no use for the token
            if flight.decoded:
                slot.held.append(turn.ids[-1])
            if turn.version is None:
                turn.version = self._version
            if turn.take(tokens[lane], logprobs[lane]):
                self._ended.append(slot)
            taken += 1
            sum_of_logprobs += logprobs[lane]
        if not math.isfinite(sum_of_logprobs):
            raise ModelError("the model's logits are not finite: lower the learning rate or load earlier weights")
        if flight.decoded:
            self._count(decode_tokens=taken, idle_lanes=len(flight.slots) - taken)

    def _hand_over(self, most: int) -> None:
        """Gives turns that are complete, at most so many, to whoever waits; their sessions keep their slots."""
        slots = [self._ended.popleft() for _ in range(min(most, len(self._ended)))]
        if slots:
            self._lanes.rest([slot.lane for slot in slots])
        for slot in slots:
            turn = slot.turn
            self._table.vacate(slot)
            turn.complete()

    @contextmanager
    def _spend(self, account: Literal["prefill", "decode"]) -> Iterator[None]:
        began = time.perf_counter()
        with self._ledger.spend(account):
            yield
        self._count(**{f"{account}_seconds": time.perf_counter() - began})

    def _count(self, **amounts: float) -> None:
        """Adds to the counters of these names."""
        for name, amount in amounts.items():
            setattr(self._counters, name, getattr(self._counters, name) + amount)


def _batches(slots: Sequence[Slot], budget: int, *, padded: bool) -> Iterator[list[Slot]]:
    """Slots whose missing tokens fit the budget together; padded, like lengths lie side by side."""
    batch: list[Slot] = []
    tokens = 0
    for width, slot in sorted(((slot.count_missing(), slot) for slot in slots), key=itemgetter(0)):
        tokens = (len(batch) + 1) * width if padded else tokens + width
        if batch and tokens > budget:
            yield batch
            batch, tokens = [], width
        batch.append(slot)
    yield batch


def _reach(slot: Slot) -> int:
    """The keys that a slot's next token sees, itself included: what is held, and what is on its way."""
    under_way = slot.request.launched - len(slot.request.ids) if slot.request is not None else 0
    return len(slot.held) + under_way + 1


def _needs(slots: Sequence[Slot]) -> _Needs:
    """Which sampling work the turns of these slots ask for."""
    samplings = [slot.turn.sampling for slot in slots]
    return {
        "greedy": any(sampling.temperature == 0 for sampling in samplings),
        "truncate": any(sampling.top_k > 0 or sampling.top_p < 1 for sampling in samplings),
    }
