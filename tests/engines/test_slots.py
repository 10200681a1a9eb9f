"""The slot table without a model: assignment, eviction, shared prefixes and compaction."""

import asyncio

from turnwise.engines.base import Sampling
from turnwise.engines.local import slots
from turnwise.engines.local.slots import Request, Slot, SlotTable, shared_prefix


def seat(table: SlotTable, session: str, prompt: list[int]) -> Slot:
    slot = table.find(session)
    if slot is None:
        slot = table.idle()[0]
        table.assign(slot, session)
    loop = asyncio.new_event_loop()
    request = Request(
        session=session, prompt=prompt, sampling=Sampling(max_tokens=4, stop_ids=()), future=loop.create_future()
    )
    loop.close()
    table.start(slot, request)
    return slot


def finish(table: SlotTable, slot: Slot) -> None:
    slot.cached_ids = list(slot.needed_ids())
    table.vacate(slot)


def test_shared_prefix_of_every_length():
    base = list(range(40))
    for length in range(40):
        changed = base.copy()
        changed[length] = -1
        assert shared_prefix(base, changed) == length
    assert shared_prefix(base, base[:17]) == 17
    assert shared_prefix([], base) == 0


def test_free_slots_first_then_the_idle_one_used_longest_ago():
    table = SlotTable(3)
    first, second, third = (seat(table, name, [1, 2]) for name in "abc")
    assert table.idle() == [], "everyone is busy"
    for slot in (second, first, third):
        finish(table, slot)
    table.forget("c")
    assert seat(table, "d", [1]) is third
    assert table.evictions == 0
    assert seat(table, "e", [1]) is second
    assert table.evictions == 1
    assert table.find("b") is None


def test_a_rewritten_prompt_keeps_only_what_it_shares():
    table = SlotTable(1)
    slot = seat(table, "a", [1, 2, 3, 4, 5])
    finish(table, slot)
    seat(table, "a", [1, 2, 9, 4, 5])
    assert slot.cached_ids == [1, 2]
    assert slot.missing_ids() == [9, 4, 5]


def test_the_last_token_of_a_prompt_is_always_read_again():
    table = SlotTable(1)
    slot = seat(table, "a", [1, 2, 3])
    finish(table, slot)
    seat(table, "a", [1, 2, 3])
    assert slot.missing_ids() == [3]


def test_equal_starts_are_read_once_and_copied_in_waves():
    system, first, second = list(range(100, 140)), list(range(10)), list(range(20, 30))
    table = SlotTable(5)
    slots = [
        seat(table, "first, 0", system + first),
        seat(table, "first, 1", system + first),
        seat(table, "second, 0", system + second),
        seat(table, "second, 1", system + second),
        seat(table, "stranger", [7] * 30),
    ]
    waves = table.waves(slots)
    assert [[slot.session for slot in wave.slots] for wave in waves] == [
        ["first, 0", "stranger"],
        ["first, 1", "second, 0"],
        ["second, 1"],
    ]
    assert [[(copy.slot.session, copy.donor.session, copy.length) for copy in wave.copies] for wave in waves] == [
        [],
        [("first, 1", "first, 0", 49), ("second, 0", "first, 0", 40)],
        [("second, 1", "second, 0", 49)],
    ]


def test_what_a_slot_already_holds_is_lent_without_waiting():
    table = SlotTable(2)
    finish(table, seat(table, "a", list(range(50))))
    newcomer = seat(table, "b", [*range(30), 99])
    (wave,) = table.waves([newcomer])
    (copy,) = wave.copies
    assert (copy.slot, copy.donor, copy.length) == (newcomer, table.find("a"), 30)


def test_the_members_of_a_group_are_compared_with_its_first_alone(monkeypatch):
    """Four groups of eight under one system prompt: 32 arrivals do not look through 32 slots each."""
    system, table, compared = list(range(100, 140)), SlotTable(32), []
    arrivals = [
        seat(table, f"{group}/{one}", [*system, *range(group, group + 20)]) for group in range(4) for one in range(8)
    ]
    plain = slots.shared_prefix
    monkeypatch.setattr(slots, "shared_prefix", lambda *ids: compared.append(None) or plain(*ids))
    waves = table.waves(arrivals)
    assert [len(wave.slots) for wave in waves] == [1, 7 + 3, 3 * 7]
    assert all(copy.donor.session.endswith("/0") for wave in waves for copy in wave.copies)
    assert len(compared) < 2 * len(arrivals)


def test_the_members_of_a_group_copy_what_a_slot_holds_already():
    table = SlotTable(4)
    finish(table, seat(table, "old", list(range(50))))
    (wave,) = table.waves([seat(table, name, list(range(50))) for name in "abc"])
    assert [(copy.slot.session, copy.donor.session, copy.length) for copy in wave.copies] == [
        (name, "old", 49) for name in "abc"
    ]


def test_a_conversation_that_continues_borrows_nothing():
    table = SlotTable(3)
    finish(table, seat(table, "a", list(range(50))))
    finish(table, seat(table, "b", list(range(100, 130))))
    continues = seat(table, "b", [*range(100, 130), *range(20)])
    (wave,) = table.waves([continues])
    assert (wave.slots, wave.copies) == ([continues], [])
    stranger = seat(table, "c", [*range(40), 99])
    (wave,) = table.waves([continues, stranger])
    assert (wave.slots, [copy.slot for copy in wave.copies]) == ([continues, stranger], [stranger])


def test_slots_are_compacted_once_half_of_their_span_is_idle():
    table = SlotTable(6)
    slots = [seat(table, str(index), [1]) for index in range(6)]
    for index in (0, 2):
        finish(table, slots[index])
    assert table.swaps() == [], "four of six slots are in use"
    finish(table, slots[3])
    assert [(one.session, other.session) for one, other in table.swaps()] == [("4", "0"), ("5", "2")]
    for one, other in table.swaps():
        table.swap(one, other)
    assert [slot.session for slot in table.slots] == ["4", "1", "5", "3", "0", "2"]
    assert [slot.index for slot in table.slots] == list(range(6))
