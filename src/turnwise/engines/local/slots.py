"""Slots on the host: the session of each, the turn that is sampled in it, and the ids in its KV cache.

Invariant: `Slot.cached_ids` lists exactly the ids whose keys and values the slot's cache holds, so a prompt can be
compared with it and nothing stale is ever attended to.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from turnwise.engines.base import Completion, Sampling
from turnwise.types import Finish

_SHORTEST_COPY = 8
"""Fewer tokens than this are faster to prefill than to copy."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A turn that is being sampled: its prompt, the tokens so far, and the future that awaits it."""

    session: str
    prompt: list[int]
    sampling: Sampling
    """With `max_tokens` clipped to the room left in the context."""
    future: asyncio.Future[Completion]
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version) of each span that one version of the weights sampled."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    launched: int = 0
    """Tokens whose forward was launched, whether or not they have been collected."""
    ended: bool = False
    """Whether its last token has been collected."""

    def append(self, token: int, logprob: float, version: int) -> bool:
        """Adds a token that these weights sampled; True if it was the last."""
        ids, sampling = self.ids, self.sampling
        if not ids or self.versions[-1][1] != version:
            self.versions.append((len(ids), version))
        ids.append(token)
        self.logprobs.append(logprob)
        self.ended = token in sampling.stop_ids or len(ids) >= sampling.max_tokens
        return self.ended

    def complete(self) -> None:
        """Resolves the future with the completion."""
        if not self.future.done():
            finish = Finish.STOP if self.ids[-1] in self.sampling.stop_ids else Finish.LENGTH
            completion = Completion(
                ids=tuple(self.ids),
                logprobs=tuple(self.logprobs),
                finish=finish,
                version=self.versions[0][1],
                versions=tuple(self.versions),
            )
            self.future.set_result(completion)

    def fail(self, failure: BaseException) -> None:
        """Resolves the future with an error."""
        if not self.future.done():
            self.future.set_exception(failure)


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """One place in the batch: its session and, while a turn is sampled, the request."""

    index: int
    """Its place in the runner's tensors."""
    session: str | None = None
    cached_ids: list[int] = field(default_factory=list)
    request: Request | None = None
    last_used: int = 0

    @property
    def turn(self) -> Request:
        """The request of a slot that is in use."""
        assert self.request is not None, "the slot is in use"
        return self.request

    def needed_ids(self) -> list[int]:
        """The ids that must be in the cache before the turn's next token can be sampled."""
        turn = self.turn
        return turn.prompt + turn.ids if turn.ids else turn.prompt

    def missing_ids(self) -> list[int]:
        """Those of them that are not in the cache yet."""
        return self.needed_ids()[len(self.cached_ids) :]

    def count_missing(self) -> int:
        """The number of missing ids."""
        return len(self.turn.prompt) + len(self.turn.ids) - len(self.cached_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCopy:
    """A prefix of the KV cache that an arrival copies from another slot, before it prefills the rest."""

    slot: Slot
    donor: Slot
    length: int
    """The tokens in the slot's cache afterwards, its own included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Arrivals that can prefill together, once their prefixes have been copied."""

    slots: list[Slot]
    copies: list[PrefixCopy]
    """At most one for each slot."""


class SlotTable:
    """All slots by index; a session keeps its slot from turn to turn until it is evicted."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index=index) for index in range(count)]
        self._by_session: dict[str, Slot] = {}
        self._clock = 0
        self.evictions = 0
        """Sessions that lost their slot and its cache to another."""

    @property
    def busy(self) -> bool:
        """Whether any slot is in use."""
        return any(slot.request is not None for slot in self.slots)

    @property
    def in_use(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.request is not None]

    @property
    def unfinished(self) -> list[tuple[Slot, Request]]:
        """The turns that need a further forward, each with its slot, by index."""
        # Over all slots at every step: without a call for each.
        return [
            (slot, turn)
            for slot in self.slots
            if (turn := slot.request) is not None and not turn.ended and turn.launched < turn.sampling.max_tokens
        ]

    def find(self, session: str) -> Slot | None:
        """The slot of this session, in use or idle."""
        return self._by_session.get(session)

    def idle(self) -> list[Slot]:
        """Slots without a turn in order of eviction: those without a session, then the least recently used."""
        idle = [slot for slot in self.slots if slot.request is None]
        return sorted(idle, key=lambda slot: (slot.session is not None, slot.last_used))

    def assign(self, slot: Slot, session: str) -> None:
        """Assigns an idle slot to a session that has none.

        Its cache may still hold another conversation: `start` keeps the prefix that the new prompt shares with it.
        """
        if slot.session is not None:
            del self._by_session[slot.session]
            self.evictions += 1
        slot.session = session
        self._by_session[session] = slot

    def start(self, slot: Slot, request: Request) -> int:
        """Begins a turn in a slot and cuts its cache to the prefix shared with the prompt, whose length it returns.

        At least the prompt's last token is computed again, for its logits.
        """
        slot.request = request
        shared = min(shared_prefix(slot.cached_ids, request.prompt), len(request.prompt) - 1)
        del slot.cached_ids[shared:]
        return shared

    def waves(self, arrivals: Sequence[Slot]) -> list[Wave]:
        """Orders arrivals so that each can copy the longest prefix of its prompt that another slot has cached by then.

        So a prefix shared by the members of a group, or by all tasks under one system prompt, is computed once.
        """
        if all(map(_continues, arrivals)):
            return [Wave(slots=list(arrivals), copies=[])]
        prefixes = {slot: slot.cached_ids for slot in self.slots}
        wave_of: dict[Slot, int] = {}
        waves: list[Wave] = []
        donors_of: dict[tuple[int, ...], dict[Slot, list[int]]] = {}
        for slot in arrivals:
            needed = slot.needed_ids()
            # The members of a group arrive with one prompt: the first looks through all slots for the others, too.
            donors = donors_of.get(prompt := tuple(needed))
            copy = None if _continues(slot) else _find_copy(slot, needed, prefixes if donors is None else donors)
            if donors is None:
                donors_of[prompt] = {**({} if copy is None else {copy.donor: prefixes[copy.donor]}), slot: needed}
            awaits_donor = copy is not None and copy.length > len(copy.donor.cached_ids)
            wave_of[slot] = wave = wave_of[copy.donor] + 1 if copy is not None and awaits_donor else 0
            prefixes[slot] = needed
            if wave == len(waves):
                waves.append(Wave(slots=[], copies=[]))
            waves[wave].slots.append(slot)
            if copy is not None:
                waves[wave].copies.append(copy)
        return waves

    def vacate(self, slot: Slot) -> None:
        """Ends a turn; the session stays in its slot."""
        self._clock += 1
        slot.request, slot.last_used = None, self._clock

    def forget(self, session: str) -> None:
        """Frees the slot of a session; its cache still serves a later prompt with the same prefix."""
        slot = self._by_session.pop(session, None)
        if slot is not None:
            slot.session = None

    def drop_caches(self) -> None:
        """Empties every cache and forgets the order of use, so that later assignments do not depend on the past."""
        self._clock = 0
        for slot in self.slots:
            slot.cached_ids.clear()
            slot.last_used = 0

    def clear(self) -> None:
        """Every slot is free and empty."""
        self._by_session.clear()
        for slot in self.slots:
            slot.session, slot.request = None, None
        self.drop_caches()

    def swaps(self) -> list[tuple[Slot, Slot]]:
        """The swaps that move the slots in use to the front, once at most half of the slots that they span are in use.

        Waiting for half means that each swap is paid for by the slots that the next steps leave out.
        """
        busy = self.in_use
        if not busy or 2 * len(busy) > busy[-1].index + 1:
            return []
        behind = [slot for slot in busy if slot.index >= len(busy)]
        gaps = [slot for slot in self.slots[: len(busy)] if slot.request is None]
        return list(zip(behind, gaps, strict=True))

    def swap(self, one: Slot, other: Slot) -> None:
        """Swaps the indices of two slots."""
        one.index, other.index = other.index, one.index
        self.slots[one.index], self.slots[other.index] = one, other


def keys_of_next_token(place: tuple[Slot, Request | None]) -> int:
    """How many keys a slot's next token attends to, its own included: those cached, and those of tokens in flight."""
    slot, turn = place
    in_flight = turn.launched - len(turn.ids) if turn is not None else 0
    return len(slot.cached_ids) + in_flight + 1


def split_by_budget(slots: Sequence[Slot], budget: int, *, padded: bool) -> Iterator[list[Slot]]:
    """Batches of slots whose missing tokens fit the budget; `padded`: each row costs the longest of its batch."""
    batch: list[Slot] = []
    tokens = 0
    for width, slot in sorted(((slot.count_missing(), slot) for slot in slots), key=itemgetter(0)):
        tokens = (len(batch) + 1) * width if padded else tokens + width
        if batch and tokens > budget:
            yield batch
            batch, tokens = [], width
        batch.append(slot)
    yield batch


def _continues(slot: Slot) -> bool:
    """Whether at least half of the needed ids are cached: a conversation that continues, with no need to copy."""
    return len(slot.cached_ids) >= slot.count_missing()


def _find_copy(slot: Slot, needed: Sequence[int], prefixes: Mapping[Slot, list[int]]) -> PrefixCopy | None:
    """The longest prefix of the needed ids that another slot has, if it is enough longer than the slot's own."""
    copy, length = None, len(slot.cached_ids)
    goal = length + _SHORTEST_COPY
    if goal >= len(needed):
        return None
    # Of hundreds of slots, few have the right id at the place that a longer prefix has to reach.
    last, wanted = goal - 1, needed[goal - 1]
    likely = [(donor, ids) for donor, ids in prefixes.items() if len(ids) >= goal and ids[last] == wanted]
    for donor, ids in likely:
        goal = length + _SHORTEST_COPY
        if goal >= len(needed):
            break
        if len(ids) >= goal and ids[goal - 1] == needed[goal - 1]:
            shared = min(shared_prefix(ids, needed), len(needed) - 1)
            if shared >= goal:
                copy, length = PrefixCopy(slot=slot, donor=donor, length=shared), shared
    return copy


def shared_prefix(cached: Sequence[int], prompt: Sequence[int]) -> int:
    """How many ids two sequences share from the start: `shared_prefix([5, 6, 7], [5, 6, 9, 1]) == 2`."""
    same, length = 0, min(len(cached), len(prompt))
    if cached == prompt[:length]:
        return length  # a conversation that continues
    # Slices compare at the speed of C: bisecting beats a loop over ids.
    while same < length:
        middle = (same + length + 1) // 2
        if cached[same:middle] == prompt[same:middle]:
            same = middle
        else:
            length = middle - 1
    return same
