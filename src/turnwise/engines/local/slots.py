"""Who sits where: the sessions in the engine's slots, and the turns they are having sampled.

Invariant: `Slot.held` lists exactly the ids whose keys and values the slot's lane holds, so a prompt can be
compared with it and nothing stale is ever attended to.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.engines.base import Completion, Sampling
from turnwise.types import Finish

_LEAST_LOAN = 8
"""Fewer tokens than this are read faster than copied."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A turn on its way: what was asked, what has been sampled, and who waits for it."""

    session: str
    prompt: list[int]
    sampling: Sampling
    """With `max_tokens` already clipped to the room the context leaves."""
    future: asyncio.Future[Completion]
    version: int | None = None
    """Of the weights that sampled the first token."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    launched: int = 0
    """Tokens that forwards were launched for, whether or not they have come back yet."""
    ended: bool = False
    """Whether its last token has come back."""

    @property
    def all_launched(self) -> bool:
        """Whether another forward could add nothing to the turn."""
        return self.ended or self.launched >= self.sampling.max_tokens

    def take(self, token: int, logprob: float) -> bool:
        """Adds a sampled token; True when it was the last."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.ended = token in self.sampling.stop_ids or len(self.ids) >= self.sampling.max_tokens
        return self.ended

    def complete(self) -> None:
        """Hands the turn to whoever waits for it."""
        if not self.future.done():
            assert self.version is not None, "a complete turn was sampled by some version"
            finish = Finish.STOP if self.ids[-1] in self.sampling.stop_ids else Finish.LENGTH
            completion = Completion(
                ids=tuple(self.ids), logprobs=tuple(self.logprobs), finish=finish, version=self.version
            )
            self.future.set_result(completion)

    def fail(self, failure: BaseException) -> None:
        """Tells whoever waits for the turn why it will not come."""
        if not self.future.done():
            self.future.set_exception(failure)


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """A lane's host side: the session it belongs to and, while a turn is sampled, the request."""

    lane: int
    session: str | None = None
    held: list[int] = field(default_factory=list)
    request: Request | None = None
    last_used: int = 0

    @property
    def turn(self) -> Request:
        """The request of a slot that is in use."""
        assert self.request is not None, "the slot is in use"
        return self.request

    def wanted(self) -> list[int]:
        """The ids the lane must hold before it can sample the turn's next token."""
        turn = self.turn
        return turn.prompt + turn.ids if turn.ids else turn.prompt

    def missing(self) -> list[int]:
        """Those of them that it does not hold yet."""
        return self.wanted()[len(self.held) :]

    def count_missing(self) -> int:
        """How many that are."""
        return len(self.turn.prompt) + len(self.turn.ids) - len(self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What an arrival takes from another slot before it reads the rest itself."""

    slot: Slot
    donor: Slot
    length: int
    """The tokens the slot holds then, its own included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Arrivals that can read at the same time, once what they borrow has been copied."""

    slots: list[Slot]
    loans: list[Loan]
    """Of those among them that borrow anything."""


class SlotTable:
    """All slots in order of their lanes; sessions keep theirs from turn to turn until someone needs it more."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(lane=lane) for lane in range(count)]
        self._by_session: dict[str, Slot] = {}
        self._clock = 0
        self.evictions = 0
        """Sessions that lost their slot, and what it held of them, to another."""

    @property
    def in_use(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.request is not None]

    def find(self, session: str) -> Slot | None:
        """The slot this session holds, busy or idle."""
        return self._by_session.get(session)

    def idle(self) -> list[Slot]:
        """The slots without a turn, in the order they are given away: free ones first, then those used longest ago."""
        idle = [slot for slot in self.slots if slot.request is None]
        return sorted(idle, key=lambda slot: (slot.session is not None, slot.last_used))

    def give(self, slot: Slot, session: str) -> None:
        """Gives an idle slot to a session that has none.

        It may still hold another conversation's ids: `seat` keeps of them what the new prompt shares.
        """
        if slot.session is not None:
            del self._by_session[slot.session]
            self.evictions += 1
        slot.session = session
        self._by_session[session] = slot

    def seat(self, slot: Slot, request: Request) -> int:
        """Begins a turn in a slot and cuts what it holds to what the prompt shares; returns how much that is.

        At least the prompt's last token is read again, for its logits.
        """
        slot.request = request
        shared = min(shared_prefix(slot.held, request.prompt), len(request.prompt) - 1)
        del slot.held[shared:]
        return shared

    def waves(self, arrivals: Sequence[Slot]) -> list[Wave]:
        """Orders arrivals so that each may copy the longest start of its prompt that another slot holds by then.

        The members of a group, and all tasks under one system prompt, so read what they share only once.
        """
        if all(map(_goes_on, arrivals)):
            return [Wave(slots=list(arrivals), loans=[])]
        coming = set(arrivals)
        offers: dict[tuple[int, ...], dict[Slot, list[int]]] = {}
        for slot in self.slots:
            first = _opening(slot.wanted() if slot in coming else slot.held)
            offers.setdefault(first, {})[slot] = slot.held
        wave_of: dict[Slot, int] = {}
        waves: list[Wave] = []
        for slot in arrivals:
            wanted = slot.wanted()
            alike = offers[_opening(wanted)]
            loan = None if _goes_on(slot) else _borrow(slot, wanted, alike)
            awaits_donor = loan is not None and loan.length > len(loan.donor.held)
            wave_of[slot] = wave = wave_of[loan.donor] + 1 if loan is not None and awaits_donor else 0
            alike[slot] = wanted
            if wave == len(waves):
                waves.append(Wave(slots=[], loans=[]))
            waves[wave].slots.append(slot)
            if loan is not None:
                waves[wave].loans.append(loan)
        return waves

    def vacate(self, slot: Slot) -> None:
        """Ends a turn; the session stays in its slot."""
        self._clock += 1
        slot.request, slot.last_used = None, self._clock

    def forget(self, session: str) -> None:
        """Frees the slot of a session for anyone; what it holds still serves a successor with the same prompt."""
        slot = self._by_session.pop(session, None)
        if slot is not None:
            slot.session = None

    def drop_caches(self) -> None:
        """Nothing is held any more, and slots are claimed in order of their lanes again: history leaves no trace."""
        self._clock = 0
        for slot in self.slots:
            slot.held.clear()
            slot.last_used = 0

    def clear(self) -> None:
        """Every slot is free and empty."""
        self._by_session.clear()
        for slot in self.slots:
            slot.session, slot.request = None, None
        self.drop_caches()

    def swaps(self) -> list[tuple[Slot, Slot]]:
        """The exchanges that bring the slots in use to the front, once they fill half of the lanes they span.

        Waiting for half means that every exchange is paid for by the lanes that the next steps leave out.
        """
        busy = self.in_use
        if not busy or 2 * len(busy) > busy[-1].lane + 1:
            return []
        behind = [slot for slot in busy if slot.lane >= len(busy)]
        gaps = [slot for slot in self.slots[: len(busy)] if slot.request is None]
        return list(zip(behind, gaps, strict=True))

    def exchange(self, one: Slot, other: Slot) -> None:
        """Swaps the lanes of two slots."""
        one.lane, other.lane = other.lane, one.lane
        self.slots[one.lane], self.slots[other.lane] = one, other


def _opening(ids: Sequence[int]) -> tuple[int, ...]:
    """What two conversations must have in common for one to lend to the other."""
    return tuple(ids[:_LEAST_LOAN])


def _goes_on(slot: Slot) -> bool:
    """Whether a slot holds half of what it wants or more: a conversation that goes on, which need not borrow."""
    return len(slot.held) >= slot.count_missing()


def _borrow(slot: Slot, wanted: Sequence[int], offers: Mapping[Slot, list[int]]) -> Loan | None:
    """The longest start of what a slot wants that it can have from others, if any has enough more than itself."""
    loan, length = None, len(slot.held)
    for donor, offered in offers.items():
        goal = length + _LEAST_LOAN
        if goal >= len(wanted):
            break
        if len(offered) >= goal and offered[goal - 1] == wanted[goal - 1]:
            shared = min(shared_prefix(offered, wanted), len(wanted) - 1)
            if shared >= goal:
                loan, length = Loan(slot=slot, donor=donor, length=shared), shared
    return loan


def shared_prefix(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many ids two sequences share from the start: `shared_prefix([5, 6, 7], [5, 6, 9, 1]) == 2`."""
    same, length = 0, min(len(held), len(prompt))
    if held == prompt[:length]:
        return length  # a conversation that goes on
    # Slices compare at the speed of C: halving the stretch in doubt beats a loop over ids.
    while same < length:
        middle = (same + length + 1) // 2
        if held[same:middle] == prompt[same:middle]:
            same = middle
        else:
            length = middle - 1
    return same
