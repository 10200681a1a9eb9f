"""The ledger divides the wall-clock: by hand on a clock of ours, and by the event loop's own idle time."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from turnwise.ledger import ACCOUNTS, TOKENS, Entry, Ledger


class Clock:
    """Time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_no_section_claims_is_charged_to_the_base(clock):
    ledger = Ledger(clock)
    clock.spend(3)
    with ledger.spend("decode"):
        clock.spend(4)
    clock.spend(0.5)
    assert ledger.close_step() == Entry(seconds={"other": 3.5, "decode": 4.0}, wall=7.5)


def test_a_section_within_another_is_charged_alone(clock):
    ledger = Ledger(clock)
    with ledger.spend("environment"):
        clock.spend(1)
        with ledger.spend("render"):
            clock.spend(2)
            with ledger.spend("store"):
                clock.spend(4)
            clock.spend(8)
        clock.spend(16)
        with ledger.spend("environment"):
            clock.spend(32)
    entry = ledger.close_step()
    assert entry.seconds == {"other": 0.0, "environment": 49.0, "render": 10.0, "store": 4.0}
    assert entry.wall == 63.0


def test_a_section_that_fails_is_charged_and_closed(clock):
    ledger = Ledger(clock)

    def fail() -> None:
        with ledger.spend("update"), ledger.spend("logprobs"):
            clock.spend(2)
            raise KeyError("bad")

    with pytest.raises(KeyError):
        fail()
    clock.spend(1)
    assert ledger.close_step().seconds == {"other": 1.0, "update": 0.0, "logprobs": 2.0}


def test_an_entry_begins_where_the_last_one_ended_even_within_a_section(clock):
    ledger = Ledger(clock)
    with ledger.spend("sft"):
        clock.spend(2)
        ledger.count(sampled=3)
        first = ledger.close_step()
        clock.spend(5)
        ledger.count(sampled=4, failed=1)
        ledger.count(sampled=1)
        second = ledger.close_step()
    assert first == Entry(seconds={"other": 0.0, "sft": 2.0}, tokens={"sampled": 3}, wall=2.0)
    assert second == Entry(seconds={"sft": 5.0}, tokens={"sampled": 5, "failed": 1}, wall=5.0)
    assert ledger.close_step() == Entry(seconds={"other": 0.0, "sft": 0.0}, wall=0.0)


def test_sections_that_overlap_are_a_bug_and_not_a_wrong_sum(clock):
    ledger = Ledger(clock)
    one, other = ledger.spend("evaluate"), ledger.spend("environment")
    one.__enter__()
    other.__enter__()
    with pytest.raises(AssertionError, match="within 'evaluate' outlived it"):
        one.__exit__(None, None, None)


def test_moving_a_share_leaves_the_sum():
    entry = Entry(seconds={"decode": 8.0, "update": 1.0}, tokens={"sampled": 2}, wall=9.0)
    apart = entry.move_share(0.25, of="decode", into="tail_idle")
    assert apart == Entry(seconds={"decode": 6.0, "update": 1.0, "tail_idle": 2.0}, tokens={"sampled": 2}, wall=9.0)
    twice = apart.move_share(0.5, of="update", into="tail_idle")
    assert twice.seconds == {"decode": 6.0, "update": 0.5, "tail_idle": 2.5}
    assert entry.move_share(0.0, of="decode", into="tail_idle") == entry
    assert entry.move_share(0.5, of="prefill", into="padding") == entry, "nothing was spent on it"
    with pytest.raises(AssertionError):
        entry.move_share(1.5, of="decode", into="tail_idle")


def test_metrics_are_named_by_what_they_count():
    entry = Entry(seconds={"decode": 1.5}, tokens={"sampled": 7}, wall=2.0)
    assert entry.metrics() == {"ledger/decode_seconds": 1.5, "ledger/wall_seconds": 2.0, "ledger/sampled_tokens": 7}


def test_every_account_and_count_is_explained():
    assert all(words and name.isidentifier() for name, words in {**ACCOUNTS, **TOKENS}.items())
    assert not ACCOUNTS.keys() & TOKENS.keys()


def run(ledger: Ledger, work) -> Entry:
    with asyncio.Runner(loop_factory=ledger.new_event_loop) as runner:
        ledger.close_step()
        runner.run(work)
        return ledger.close_step()


def test_a_loop_that_only_waits_is_charged_to_tool_wait():
    ledger = Ledger()

    async def wait() -> None:
        with ledger.spend("environment"):
            await asyncio.gather(asyncio.sleep(0.05), asyncio.sleep(0.08))

    entry = run(ledger, wait())
    assert 0.07 < entry.seconds["tool_wait"] <= entry.wall
    assert sum(entry.seconds.values()) == pytest.approx(entry.wall, rel=1e-9)


def test_a_loop_that_works_while_others_wait_does_not_idle():
    """One task sleeps while another keeps the loop busy: only what is left of the sleep afterwards was waiting."""
    ledger = Ledger()

    async def work() -> None:
        end = time.perf_counter() + 0.06
        while time.perf_counter() < end:
            with ledger.spend("decode"):
                time.sleep(0.002)
            await asyncio.sleep(0)

    async def both() -> None:
        with ledger.spend("environment"):
            await asyncio.gather(asyncio.sleep(0.03), work())

    entry = run(ledger, both())
    assert "tool_wait" not in entry.seconds
    assert entry.seconds["decode"] > 0.8 * entry.wall
    assert sum(entry.seconds.values()) == pytest.approx(entry.wall, rel=1e-9)


def test_a_thread_that_answers_is_waited_for():
    ledger = Ledger()

    async def ask() -> int:
        with ledger.spend("environment"):
            return await asyncio.to_thread(lambda: time.sleep(0.05) or 7)

    entry = run(ledger, ask())
    assert entry.seconds["tool_wait"] > 0.04


def test_the_page_about_the_ledger_says_what_the_ledger_says():
    page = (Path(__file__).parents[1] / "docs" / "ledger.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", page, re.MULTILINE))
    assert rows == {**ACCOUNTS, **TOKENS}
