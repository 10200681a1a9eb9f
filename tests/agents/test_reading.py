"""What the episodes of a tick read is tokenised together, and is what each would have read alone."""

import asyncio

import pytest

from byte_render import ByteRender
from turnwise.agents.reading import TickReader
from turnwise.errors import RenderError
from turnwise.ledger import Ledger
from turnwise.types import Message


class Reading(ByteRender):
    """Notes what it is given to read ahead."""

    def __init__(self, *, error=None):
        super().__init__()
        self.batches, self._error = [], error

    def read_ahead(self, batch):
        self.batches.append(batch)
        if self._error is not None:
            raise self._error


def says(word):
    return (Message(role="user", content=word),)


async def prepare(reader, render, *words, ledger=None):
    given = ledger or Ledger()
    await asyncio.gather(*(reader.prepare(render, says(word), given) for word in words))


def test_the_episodes_of_a_tick_are_read_for_in_one_call():
    reader, render = TickReader(cores=4), Reading()

    async def play():
        await prepare(reader, render, "a", "b", "a")
        await prepare(reader, render, "c", "a")

    asyncio.run(play())
    assert render.batches == [[says("a"), says("b"), says("a")], [says("c"), says("a")]]


async def rounds(reader, render):
    reading = asyncio.ensure_future(prepare(reader, render, "a"))
    ticks = 0
    while not reading.done():
        ticks += 1
        await asyncio.sleep(0)
    return ticks


def test_an_episode_comes_back_in_the_same_tick_whether_or_not_its_messages_are_known():
    """A run that was resumed has forgotten them, and must decode the same episodes together."""
    reader, render = TickReader(cores=4), Reading()

    async def play():
        return [await rounds(reader, render) for _ in range(2)]

    first, again = asyncio.run(play())
    assert again == first


def test_on_few_cores_or_without_a_renderer_that_keeps_nothing_waits():
    few, other = Reading(), ByteRender()
    alone = asyncio.run(rounds(TickReader(cores=3), few))
    assert few.batches == []
    assert asyncio.run(rounds(TickReader(cores=4), other)) == alone
    assert asyncio.run(rounds(TickReader(cores=4), Reading())) > alone


@pytest.mark.parametrize("error", [RenderError("no such role"), ValueError("no such id")])
def test_messages_that_cannot_be_written_fail_in_their_own_episode(error):
    render = Reading(error=error)

    async def play():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        await asyncio.wait_for(prepare(TickReader(cores=4), render, "a", "b"), timeout=10)

    asyncio.run(play())
    assert len(render.batches) == 1, "and nobody is left waiting"


def test_an_episode_that_is_cancelled_is_not_read_for():
    reader, render = TickReader(cores=4), Reading()

    async def play():
        gone = asyncio.ensure_future(prepare(reader, render, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone.cancel()
        await prepare(reader, render, "b")

    asyncio.run(play())
    assert [one for batch in render.batches for one in batch][-1] == says("b")


def test_a_loop_that_ended_leaves_nothing_for_the_next():
    reader, render = TickReader(cores=4), Reading()
    loop = asyncio.new_event_loop()
    left = reader.prepare(render, says("a"), Ledger())
    loop.run_until_complete(asyncio.wait([loop.create_task(left)], timeout=0))
    loop.close()
    asyncio.run(asyncio.wait_for(prepare(reader, render, "b"), 5))
    assert render.batches[-1] == [says("b")]


def test_the_time_is_charged_to_rendering():
    now = [0.0]
    ledger, render = Ledger(lambda: now[0]), Reading()
    plain = render.read_ahead

    def slow(batch):
        now[0] += 2.0
        plain(batch)

    render.read_ahead = slow

    async def play():
        with ledger.spend("environment"):
            await prepare(TickReader(cores=4), render, "a", ledger=ledger)

    asyncio.run(play())
    assert ledger.close_step().seconds == pytest.approx({"other": 0.0, "environment": 0.0, "render": 2.0})
