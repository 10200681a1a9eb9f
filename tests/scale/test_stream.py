"""Groups that play while the learner updates: none too old, none starved, none lost."""

import asyncio
import random

import pytest

from held_workers import run_cleanly
from played_groups import TASKS, WANTED, Gated, Player, collect, numbers, played, stream_of, train
from turnwise.errors import EnvError, RunError
from turnwise.rollout.stream import count_dropped, measure_staleness
from turnwise.types import Group, StopReason, Trajectory, Turn


@pytest.mark.parametrize("staleness", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_group_is_older_than_the_bound_and_every_group_is_learnt_from_once(staleness, seed):
    """Durations of a long tail: the slowest play through many steps' worth of the others."""
    draw = random.Random(seed)
    slow = {number: 0.001 * draw.paretovariate(1.1) for number in range(200)}
    worker = Player(lambda number: min(slow[number], 0.05))
    steps = 12

    async def run():
        stream = stream_of(worker, staleness=staleness, steps=steps)
        batches = await train(stream, steps, update_seconds=0.002)
        assert not stream.active, "nothing is sampled that no step learns from"
        await stream.close()
        return batches

    batches = run_cleanly(run())
    learnt = [number for batch in batches for number in numbers(batch.kept)]
    assert sorted(learnt) == list(range(steps * WANTED)), "none twice, none lost, none starved"
    for step, batch in enumerate(batches):
        ages = [step - turn.version for group in batch.kept for one in group.trajectories for turn in one.turns]
        assert 0 <= min(ages) <= max(ages) <= staleness
        assert batch.sampling["staleness/max"] == max(ages)
        assert batch.sampling["staleness/dropped_groups"] == 0
    assert max(batch.sampling["staleness/max"] for batch in batches) > 0, "or nothing was asynchronous"


def test_groups_play_while_the_learner_updates():
    async def run():
        worker = Gated()
        stream = stream_of(worker)
        first = asyncio.ensure_future(collect(stream, 0))  # with the weights of version 0 that the run begins with
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert worker.begun == [0, 1, 2, 3, 4, 5], "those of this step and of the next"
        await worker.finish(0, 1, 2)
        assert numbers((await first).kept) == [0, 1, 2]
        assert worker.begun == [0, 1, 2, 3, 4, 5], "an update under way is one step less in reach"
        await worker.finish(4, 5)
        await stream.load({}, 1)
        second = asyncio.ensure_future(collect(stream, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert worker.begun == list(range(9))
        await worker.finish(6, 7, 8)
        assert not second.done(), "group 3 was begun with version 0: this is its last step"
        await worker.finish(3)
        batch = await second
        assert numbers(batch.kept) == [3, 4, 5]
        assert batch.sampling["staleness/mean"] == 1
        await stream.close()

    run_cleanly(run())


def test_a_slow_group_is_passed_over_while_it_has_time():
    async def run():
        worker = Gated()
        stream = stream_of(worker, staleness=2)
        await stream.load({}, 0)
        first = asyncio.ensure_future(collect(stream, 0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert worker.begun == list(range(9))
        await worker.finish(1, 2, 3)
        assert numbers((await first).kept) == [1, 2, 3], "group 0 may still be learnt from at steps 1 and 2"
        await worker.finish(4, 5, 6)
        await stream.load({}, 1)
        assert numbers((await collect(stream, 1)).kept) == [4, 5, 6]
        await stream.load({}, 2)
        third = asyncio.ensure_future(collect(stream, 2))
        for _ in range(5):
            await asyncio.sleep(0)
        await worker.finish(*range(9, 15), 7, 8)
        assert not third.done(), "others that ended do not take its place"
        await worker.finish(0)
        assert numbers((await third).kept) == [0, 7, 8]
        await stream.close()

    run_cleanly(run())


def test_stragglers_are_dropped_where_that_is_asked_for_and_counted_by_length():
    """Group 1 needs far longer than a step waits; it ends later, and is in a batch without being learnt from."""

    async def run():
        worker = Player(lambda number: 0.15 if number == 1 else 0.0, lambda number: 50 if number == 1 else 2)
        stream = stream_of(worker, straggler_seconds=0.02, steps=100)
        batches = await train(stream, 4)
        await asyncio.sleep(0.2)
        batches += await train(stream, 1, first=4)
        await stream.close()
        return batches

    batches = run_cleanly(run())
    assert 1 not in [number for batch in batches for number in numbers(batch.kept)]
    assert [batch.sampling["staleness/dropped_groups"] for batch in batches] == [0, 0, 0, 0, 1]
    assert numbers(batches[-1].groups)[-1] == 1, "what was sampled is in the record"
    assert batches[-1].sampling["staleness/dropped_episode_tokens"] == 50
    assert batches[-1].sampling["staleness/learnt_episode_tokens"] == 2
    assert all(len(batch.kept) == WANTED for batch in batches)
    for step, batch in enumerate(batches):
        assert batch.sampling["staleness/max"] <= 1, step


def test_a_filter_refills_from_what_is_under_way():
    async def run():
        worker = Player(reward=lambda number: 0.0)
        stream = stream_of(worker)
        await stream.load({}, 0)

        class Third:
            def __init__(self, groups):
                self.kept = tuple(index for index, number in enumerate(numbers(groups)) if number % 3 == 0)

            def metrics(self, refills):
                return {"filter/refills": float(refills)}

        batch = await stream.collect(
            0, lambda groups, most=None: Third(groups), refill=5, progress=lambda done, total: None
        )
        await stream.close()
        return batch

    batch = run_cleanly(run())
    assert numbers(batch.kept) == [0, 3, 6]
    assert numbers(batch.groups) == list(range(9)), "each of them once"
    assert (batch.refills, batch.metrics()["filter/refills"]) == (2, 2.0)


def test_refills_leave_no_group_too_old():
    async def run():
        worker = Player(lambda number: 0.001 * (number % 7))
        stream = stream_of(worker, staleness=1, steps=8)
        batches = await train(stream, 8, update_seconds=0.002, rule="nonzero", refill=2)
        await stream.close()
        return batches

    batches = run_cleanly(run())
    seen = [number for batch in batches for number in numbers(batch.groups)]
    assert len(set(seen)) == len(seen)
    for step, batch in enumerate(batches):
        versions = [one.turns[0].version for group in batch.groups for one in group.trajectories]
        assert step - min(versions) <= 1


def test_nothing_is_lost_when_a_run_is_killed_and_resumed():
    """What was begun, ended or merely drawn is played after the resume, with the same seeds and tasks."""

    async def first():
        worker = Player(lambda number: 0.002 * (number % 5))
        stream = stream_of(worker, staleness=2, steps=9)
        batches = await train(stream, 4)
        state = stream.state_dict()
        await stream.close()
        return [n for batch in batches for n in numbers(batch.kept)], state, worker.begun

    async def second(state):
        worker = Player(lambda number: 0.002 * (number % 3))
        stream = stream_of(worker, staleness=2, steps=9)
        stream.load_state_dict(state)
        batches = await train(stream, 5, first=4)
        await stream.close()
        return [n for batch in batches for n in numbers(batch.kept)], worker.begun

    before, state, begun = run_cleanly(first())
    after, begun_again = run_cleanly(second(state))
    assert sorted(before + after) == list(range(9 * WANTED))
    tasks = {number: task for number, _, task in begun}
    again = {number: task for number, _, task in begun_again}
    both = tasks.keys() & again.keys()
    assert len(both) >= WANTED, "or the test says nothing"
    assert all(tasks[number] == again[number] for number in both)
    assert all(version >= 4 for _, version, _ in begun_again), "by the weights that the run has then"
    straight = Player()
    run_cleanly(train(stream_of(straight, staleness=2, steps=9), 9))
    assert tasks | again == {number: task for number, _, task in straight.begun}, "those of a run that never stopped"


def test_after_a_rollback_what_was_sampled_is_dropped_and_what_was_playing_begins_again():
    async def run():
        worker = Gated()
        stream = stream_of(worker)
        await stream.load({}, 0)
        first = asyncio.ensure_future(collect(stream, 0))
        for _ in range(5):
            await asyncio.sleep(0)
        await worker.finish(0, 1, 2, 4)
        await first
        assert stream.active
        await stream.restart()
        assert not stream.active
        assert worker.cancelled == [3, 5], "nobody plays for the abandoned weights any more"
        await stream.load({}, 1)
        second = asyncio.ensure_future(collect(stream, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert worker.begun == [0, 1, 2, 3, 4, 5, 3, 5, 6, 7, 8, 9]
        await worker.finish(3, 5, 6)
        batch = await second
        assert numbers(batch.kept) == [3, 5, 6]
        assert numbers(batch.groups) == [3, 5, 6, 4]
        assert batch.sampling["staleness/dropped_groups"] == 1
        assert batch.sampling["staleness/max"] == 0, "played by the weights of the checkpoint"
        await stream.close()

    run_cleanly(run())


def resumed(worker, begun, *, next_number, **settings):
    """A stream that goes on from a checkpoint: groups that were late stand before lower ones that had ended in time."""
    stream = stream_of(worker, **settings)
    drawn = [[number, number % len(TASKS)] for number in begun]
    stream.load_state_dict({"sampler": stream.task_sampler.state_dict(), "next": next_number, "drawn": drawn})
    return stream


def test_where_more_have_ended_than_a_step_learns_from_those_of_the_lowest_numbers_are_taken():
    async def run():
        worker = Gated()
        stream = resumed(worker, [4, 5, 8, 7, 9, 10], next_number=11)
        await stream.load({}, 3)
        batch = asyncio.ensure_future(collect(stream, 3))
        for _ in range(5):
            await asyncio.sleep(0)
        assert worker.begun == [4, 5, 8, 7, 9, 10], "as they were saved"
        await worker.finish(8, 7, 5, 4)
        assert numbers((await batch).kept) == [4, 5, 7]
        await stream.close()

    run_cleanly(run())


def test_groups_are_learnt_from_in_the_order_of_their_numbers_though_the_oldest_are_chosen_first():
    """Group 3 begins a step after 7 and 8, by newer weights, and takes the place of 9, which is too slow."""

    async def run():
        worker = Gated()
        stream = resumed(worker, [4, 5, 6, 7, 8, 9, 3], next_number=10, straggler_seconds=0.1)
        await stream.load({}, 3)
        first = asyncio.ensure_future(collect(stream, 3))
        for _ in range(5):
            await asyncio.sleep(0)
        await worker.finish(4, 5, 6)
        assert numbers((await first).kept) == [4, 5, 6]
        await stream.load({}, 4)
        second = asyncio.ensure_future(collect(stream, 4))
        for _ in range(5):
            await asyncio.sleep(0)
        assert worker.begun == [4, 5, 6, 7, 8, 9, 3, 10, 11]
        await worker.finish(7, 8, 3)
        assert numbers((await second).kept) == [3, 7, 8]
        await stream.close()

    run_cleanly(run())


def test_the_last_steps_begin_no_more_than_they_learn_from():
    worker = Player()

    async def run():
        stream = stream_of(worker, staleness=3, steps=4)
        await train(stream, 4)
        assert not stream.active
        await stream.close()

    run_cleanly(run())
    assert [number for number, _, _ in worker.begun] == list(range(4 * WANTED))


def test_a_mistake_ends_the_run_though_its_group_is_not_due():
    class Broken(Player):
        async def play(self, job):
            if job.index == 5:
                raise RunError("no such level")
            return await super().play(job)

    async def run():
        stream = stream_of(Broken(lambda number: 0.001))
        try:
            await train(stream, 2)
        finally:
            await stream.close()

    with pytest.raises(RunError, match="no such level"):
        run_cleanly(run())


def test_failed_episodes_are_counted_against_a_step():
    class Failing(Player):
        async def play(self, job):
            return played(job, self.version, stop=StopReason.ENV_FAILED if job.index != 0 else StopReason.DONE)

    async def run():
        stream = stream_of(Failing(), max_failures=0.5)
        try:
            await train(stream, 1)
        finally:
            await stream.close()

    with pytest.raises(EnvError, match="4 of 6 episodes failed"):
        run_cleanly(run())


def test_the_age_of_every_token_counts():
    turn = Turn(
        context_ids=(1,),
        action_ids=(5, 6, 7, 8),
        logprobs=(0.0,) * 4,
        version=3,
        versions=((0, 3), (1, 5)),
        opens_row=True,
    )
    one = Trajectory(task=TASKS[0], turns=(turn,), stop=StopReason.DONE)
    found = measure_staleness(5, [Group(task=TASKS[0], trajectories=(one,))])
    assert found == {"staleness/mean": 0.5, "staleness/max": 2.0, "staleness/mixed_turns": 1.0}
    fresh = Turn(context_ids=(1,), action_ids=(5, 6), logprobs=(0.0,) * 2, version=5, opens_row=True)
    other = Trajectory(task=TASKS[0], turns=(fresh, turn, fresh), stop=StopReason.DONE)
    found = measure_staleness(5, [Group(task=TASKS[0], trajectories=(one, other))])
    assert found["staleness/mixed_turns"] == 0.5
    assert found["staleness/mean"] == 4 / 12
    assert measure_staleness(5, []) == {}


def test_the_length_of_episodes_is_compared_where_some_were_dropped():
    def group(*lengths):
        turns = [Turn(context_ids=(1,), action_ids=(5,) * n, logprobs=(0.0,) * n, opens_row=True) for n in lengths]
        members = [Trajectory(task=TASKS[0], turns=(turn,), stop=StopReason.DONE) for turn in turns]
        return Group(task=TASKS[0], trajectories=tuple(members))

    nothing = {"staleness/dropped_groups": 0.0}
    assert count_dropped([], []) == nothing
    assert count_dropped([group(2, 4)], []) == nothing
    dropped = {"staleness/dropped_groups": 1.0, "staleness/dropped_episode_tokens": 7.0}
    assert count_dropped([], [group(7)]) == dropped
    assert count_dropped([group(2, 4)], [group(7)]) == dropped | {"staleness/learnt_episode_tokens": 3.0}
