"""How a stream waits for its groups: what it shows, whom it drops, what it charges, and what it leaves behind."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from held_workers import run_cleanly, until
from played_groups import WANTED, Gated, Player, collect, numbers, stream_of, train
from turnwise.errors import RunError
from turnwise.ledger import Ledger


async def settle():
    for _ in range(8):
        await asyncio.sleep(0)


async def begin(stream, step, **given):
    """A batch that is being collected, with its groups under way."""
    await stream.load({}, step)
    batch = asyncio.ensure_future(collect(stream, step, **given))
    await settle()
    return batch


def test_progress_counts_the_episodes_of_the_step_as_they_end():
    shown = [[], []]

    async def run():
        worker = Gated()
        stream = stream_of(worker)
        first = await begin(stream, 0, progress=lambda *told: shown[0].append(told))
        for number in (2, 0, 1):
            await worker.finish(number)
        await first
        await worker.finish(3)
        second = await begin(stream, 1, progress=lambda *told: shown[1].append(told))
        for number in (6, 7, 8, 4, 5):
            await worker.finish(number)
        await second
        await stream.close()

    run_cleanly(run())
    first, second = (list(dict.fromkeys(told)) for told in shown)
    assert first == [(0, 6), (2, 6), (4, 6), (6, 6)]
    assert second == [(2, 6), (4, 6), (6, 6)], "group 3 had ended before; never more than the step has"


def test_groups_are_counted_as_they_end_and_looked_at_only_when_there_may_be_enough(monkeypatch):
    """Thousands are under way: looking at all of them for each that ends would take longer than they play."""
    looks = []

    async def run():
        worker = Gated()
        stream = stream_of(worker, staleness=2)
        count = stream._count_lacking
        monkeypatch.setattr(stream, "_count_lacking", lambda step, **how: looks.append(step) or count(step, **how))
        first = await begin(stream, 0)
        for number in (4, 2, 3):
            assert looks == [0]
            await worker.finish(number)
        await first
        assert looks == [0, 0]
        second = await begin(stream, 1)
        for number in (9, 10, 0, 8, 11, 5):
            assert looks[2:] == [1], "six are of the first weights: this step and the next take three each"
            await worker.finish(number)
        assert numbers((await second).kept) == [0, 5, 8]
        third = await begin(stream, 2)
        for number in (12, 7, 13, 6, 14, 1):
            assert looks[4:] == [2], "1, 6 and 7 are due"
            await worker.finish(number)
        assert numbers((await third).kept) == [1, 6, 7]
        await stream.close()

    run_cleanly(run())
    assert looks == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("step", "groups", "lacking", "without_room"),
    [
        # By version: how many have ended, of how many. A step takes three, those of version v until step v + 2.
        (0, {0: (0, 9)}, {0: 3}, {0: 3}),
        (1, {0: (0, 6), 1: (2, 3)}, {0: 3, 1: 1}, {1: 1}),
        (1, {0: (1, 6), 1: (3, 3)}, {0: 2}, {}),
        (1, {0: (0, 4), 1: (3, 5)}, {0: 1}, {}),  # the next step can take the other three
        (1, {0: (0, 3), 1: (3, 6)}, {}, {}),
        (2, {0: (1, 2), 1: (0, 4), 2: (0, 3)}, {0: 1, 1: 2, 2: 2}, {0: 1, 2: 2}),
        (2, {0: (0, 5), 1: (3, 4)}, {0: 3}, {0: 3}),  # two are more than it can take
        (2, {2: (3, 9)}, {}, {}),
    ],
)
def test_what_a_step_waits_for_by_hand(step, groups, lacking, without_room):
    stream = stream_of(Player(), staleness=2)
    stream._begun = [
        SimpleNamespace(version=version, done=number < ended, task=SimpleNamespace(exception=lambda: None))
        for version, (ended, of) in groups.items()
        for number in range(of)
    ]
    assert stream._count_lacking(step, leaves_room=True) == lacking
    assert stream._count_lacking(step, leaves_room=False) == without_room


def test_a_failure_ends_a_batch_at_once_though_all_others_still_play():
    async def run():
        worker = Gated()
        stream = stream_of(worker)
        batch = await begin(stream, 0)
        worker.open[5].set_exception(RunError("no such level"))
        with pytest.raises(RunError, match="no such level"):
            await asyncio.wait_for(batch, 10)
        await stream.close()

    run_cleanly(run())


def test_a_step_leaves_no_more_behind_than_the_next_ones_can_take():
    """Six groups of the first weights are slow at once; the next step can learn from three of them."""
    shown = [[], []]

    async def run():
        worker = Gated()
        stream = stream_of(worker, staleness=2)
        first = await begin(stream, 0)
        await worker.finish(0, 1, 2)
        assert numbers((await first).kept) == [0, 1, 2]
        second = await begin(stream, 1)
        await worker.finish(9, 10, 4, 6)
        assert not second.done(), "with 9 or 10 in this batch, one of those left would never be learnt from"
        await worker.finish(8)
        assert numbers((await second).kept) == [4, 6, 8]
        third = await begin(stream, 2, progress=lambda *told: shown[0].append(told))
        await worker.finish(3, 5, 7)
        assert numbers((await third).kept) == [3, 5, 7]
        await worker.finish(11)
        fourth = await begin(stream, 3, progress=lambda *told: shown[1].append(told))
        batch = await fourth
        assert numbers(batch.kept) == [9, 10, 11]
        assert batch.sampling["staleness/dropped_groups"] == 0
        await stream.close()

    run_cleanly(run())
    assert list(dict.fromkeys(shown[0])) == [(0, 6), (2, 6), (4, 6), (6, 6)], "9 and 10 are none of what it waits for"
    assert shown[1] == [(6, 6)], "it need not wait"


def test_groups_that_are_overtaken_are_dropped_and_counted():
    """The wait is limited: the second step takes younger groups, and the third can learn from three of six."""

    async def run():
        worker = Gated()
        stream = stream_of(worker, staleness=2, straggler_seconds=0.05)
        for step, ended in enumerate([(0, 1, 2), (9, 10, 11), (4, 6, 7)]):
            batch = await begin(stream, step)
            await worker.finish(*ended)
            await until(batch.done)
            assert numbers((await batch).kept) == list(ended)
        await worker.finish(5)
        fourth = await begin(stream, 3)
        await worker.finish(12, 13, 14)
        batch = await fourth
        assert numbers(batch.kept) == [12, 13, 14], "3, 5 and 8 are three steps old"
        assert numbers(batch.groups) == [12, 13, 14, 5]
        assert batch.sampling["staleness/dropped_groups"] == 1
        assert stream.active
        await stream.close()

    run_cleanly(run())


def test_a_straggler_within_its_time_is_waited_for():
    async def run():
        stream = stream_of(Player(lambda number: 0.05 if number == 3 else 0.0), straggler_seconds=0.9)
        batches = await train(stream, 2)
        assert 3 in numbers(batches[1].kept)
        await stream.close()

    run_cleanly(run())


def test_only_groups_that_are_due_are_dropped_and_others_take_their_places():
    async def run():
        worker = Gated()
        stream = stream_of(worker, straggler_seconds=0.3)
        first = await begin(stream, 0)
        await worker.finish(0, 1, 2)
        await first
        second = await begin(stream, 1)
        await worker.finish(4, 5)
        assert worker.begun == list(range(9))
        await until(lambda: len(worker.begun) > 9)  # for group 3 is dropped
        assert worker.begun == list(range(10))
        await worker.finish(8)
        assert numbers((await second).kept) == [4, 5, 8]
        third = await begin(stream, 2)
        await worker.finish(6, 7, 9)
        assert numbers((await third).kept) == [6, 7, 9], "they had time left"
        await stream.close()

    run_cleanly(run())


def test_tasks_are_learnt_of_also_from_groups_that_came_too_late():
    async def run():
        worker = Gated()
        stream = stream_of(worker, straggler_seconds=0.3, task_sampler="hard")
        first = await begin(stream, 0)
        await worker.finish(0, 1, 2)
        await first
        second = await begin(stream, 1)
        await worker.finish(4, 5)
        await until(lambda: len(worker.begun) > 9)  # for group 3 is dropped
        await worker.finish(3)
        await worker.finish(8)
        groups = [*(await first).groups, *(await second).groups]
        assert numbers(groups) == [0, 1, 2, 4, 5, 8, 3]
        rates = stream.task_sampler.state_dict()["rates"]
        await stream.close()
        return [int(group.task.id) for group in groups], rates

    played, rates = run_cleanly(run())
    assert played[-1] not in played[:-1], "or the test says nothing"
    assert rates == dict.fromkeys(played, 0.0)


def test_a_batch_took_the_time_since_the_last_one_and_waited_for_a_part_of_it():
    ledger = Ledger()

    async def run():
        stream = stream_of(Player(lambda number: 0.01), steps=3, ledger=ledger)
        batches = await train(stream, 2, update_seconds=0.2)
        await stream.close()
        return batches

    first, second = run_cleanly(run())
    for batch in (first, second):
        assert 0 <= batch.sampling["staleness/wait_seconds"] <= batch.seconds < 60
    assert second.seconds - second.sampling["staleness/wait_seconds"] >= 0.19, "the update is in it"
    assert first.seconds == pytest.approx(first.sampling["staleness/wait_seconds"], abs=0.01)
    assert first.sampling["staleness/groups_ahead"] == WANTED
    assert ledger.close_step().seconds["environment"] > 0


def test_a_stream_that_is_closed_leaves_nothing_behind(caplog):
    async def run(straggler_seconds):
        worker = Gated()
        stream = stream_of(worker, straggler_seconds=straggler_seconds)
        first = await begin(stream, 0)
        await worker.finish(0, 1, 2)
        await first
        second = await begin(stream, 1)
        await worker.finish(4, 5, 7)
        if straggler_seconds is None:
            second.cancel()
        else:
            await second
            assert stream.active
        closed = []

        async def close():
            closed.append(1)

        stream.fleet.close = close
        await stream.close()
        assert not stream.active
        assert 3 in worker.cancelled
        assert not {0, 4, 5, 7} & set(worker.cancelled)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert closed == [1]

    with caplog.at_level(logging.WARNING):
        run_cleanly(run(None))
        assert "too late" not in caplog.text
        run_cleanly(run(0.3))
        assert "1 groups were too late to be learnt from and still playing at the end" in caplog.text
