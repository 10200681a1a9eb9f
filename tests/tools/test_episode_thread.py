"""The thread of an episode: calls in order, a deadline for each, and the loss of the thread when one hangs."""

import asyncio
import contextvars
import gc
import threading
import time
import weakref

import pytest

from turnwise.tools import abandoned_threads
from turnwise.tools.episode_thread import EpisodeThread, LostThreadError, Paces


def test_every_call_runs_in_one_thread_that_is_not_the_loops():
    async def main():
        thread = EpisodeThread()
        return [await thread.run(threading.get_ident, what="x", seconds=5) for _ in range(3)]

    found = asyncio.run(main())
    assert len(set(found)) == 1
    assert threading.get_ident() not in found


def test_what_a_call_raises_is_raised_here_and_exits_nothing():
    def raise_(error):
        raise error

    async def main(error):
        thread = EpisodeThread()
        try:
            await thread.run(lambda: raise_(error), what="x", seconds=5)
        finally:
            assert await thread.run(lambda: 2, what="y", seconds=5) == 2, "the thread goes on"

    with pytest.raises(KeyError, match="gold"):
        asyncio.run(main(KeyError("gold")))
    with pytest.raises(RuntimeError, match=r"^it raised SystemExit: 3$"):
        asyncio.run(main(SystemExit(3)))
    with pytest.raises(RuntimeError, match=r"^it raised KeyboardInterrupt$"):
        asyncio.run(main(KeyboardInterrupt()))


def test_a_hang_is_named_and_costs_the_thread_and_later_calls_do_not_wait():
    release, before = threading.Event(), abandoned_threads()

    async def main():
        thread = EpisodeThread()
        with pytest.raises(
            LostThreadError,
            match=r"^tool 'hang' gave no answer within 0\.05 seconds \(.*test_episode_thread.py:[0-9]+ in <lambda>\)$",
        ):
            await thread.run(lambda: release.wait(20), what="tool 'hang'", seconds=0.05)
        assert abandoned_threads() == before + 1
        start = time.monotonic()
        with pytest.raises(LostThreadError, match=r"tool 'hang' gave no answer .* holds the thread"):
            await thread.run(lambda: 1, what="reward 'paid'", seconds=20)
        assert time.monotonic() - start < 5

    asyncio.run(main())
    release.set()
    deadline = time.monotonic() + 10
    while abandoned_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert abandoned_threads() == before, "a thread that came back is abandoned no longer"


def test_the_time_of_a_call_counts_from_its_turn():
    async def main():
        thread = EpisodeThread()
        slow = [thread.run(lambda: time.sleep(0.2), what="x", seconds=0.8) for _ in range(6)]
        await asyncio.gather(*slow)

    asyncio.run(main())


def test_a_cancelled_caller_leaves_the_thread_usable_once_the_call_returns():
    release = threading.Event()

    async def main():
        thread = EpisodeThread()
        waiting = asyncio.ensure_future(thread.run(lambda: release.wait(20), what="x", seconds=None))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        release.set()
        return await thread.run(lambda: "closed", what="close", seconds=5)

    assert asyncio.run(main()) == "closed"


def test_context_variables_are_the_callers():
    variable = contextvars.ContextVar("variable", default="unset")

    async def main():
        variable.set("set")
        return await EpisodeThread().run(variable.get, what="x", seconds=5)

    assert asyncio.run(main()) == "set"


def test_the_thread_ends_with_its_object():
    async def main():
        return await EpisodeThread().run(threading.current_thread, what="x", seconds=5)

    gc.disable()
    try:
        worker = asyncio.run(main())
        worker.join(10)
        assert not worker.is_alive(), "without the garbage collector's help"
    finally:
        gc.enable()


def test_fast_code_returns_before_anything_else_in_the_loop_runs():
    """As if it had run inline: whatever the threads do, episodes go on in an order that a seed repeats."""

    async def main():
        order = []
        paces = Paces()

        async def episode(number):
            thread = EpisodeThread(paces)
            for turn in range(3):
                await thread.run(lambda: None, what="tool 'fast'", seconds=30)
                order.append((number, turn))

        await asyncio.gather(*(episode(number) for number in range(20)))
        return order

    assert asyncio.run(main()) == [(number, turn) for number in range(20) for turn in range(3)]


def test_code_that_proves_slow_is_awaited_side_by_side():
    paces, slow = Paces(), 0.05

    async def episode():
        await EpisodeThread(paces).run(lambda: time.sleep(slow), what="tool 'slow'", seconds=30)

    async def main():
        await asyncio.gather(*(episode() for _ in range(6)))
        assert paces.is_slow("tool 'slow'")
        start = time.perf_counter()
        await asyncio.gather(*(episode() for _ in range(40)))
        return time.perf_counter() - start

    assert asyncio.run(main()) < 40 * slow / 2


def test_a_slow_call_now_and_then_does_not_make_code_slow():
    paces = Paces()
    for call in range(1000):
        paces.add("tool 'fast'", 0.01 if call % 50 == 0 else 1e-5)
        assert not paces.is_slow("tool 'fast'")
    assert not paces.is_slow("never called")


def test_an_error_does_not_keep_the_environment_or_the_thread():
    class World:
        def fail(self):
            raise KeyError("gold")

    async def main():
        world, thread = World(), EpisodeThread()
        with pytest.raises(KeyError):
            await thread.run(world.fail, what="x", seconds=5)
        return weakref.ref(world), weakref.ref(thread)

    gc.disable()
    try:
        kept = [reference() for reference in asyncio.run(main())]
    finally:
        gc.enable()
    assert kept == [None, None]
