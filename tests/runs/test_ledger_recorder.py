"""Ledger entries by hand: shares taken from counters, and one outcome for every token."""

import dataclasses

import pytest

from turnwise.engines.base import EngineStats
from turnwise.learner.update import Update
from turnwise.ledger import Ledger
from turnwise.runs.ledger.recorder import LedgerRecorder, count_outcomes, count_played
from turnwise.types import Group, StopReason, Task, Trajectory, Turn


def episode(*turns: tuple[int, int], stop: StopReason = StopReason.DONE) -> Trajectory:
    """Of turns that read and say so many tokens each."""
    made = [
        Turn(context_ids=(1,) * read, action_ids=(2,) * said, logprobs=(0.0,) * said, opens_row=place == 0)
        for place, (read, said) in enumerate(turns)
    ]
    return Trajectory(task=TASK, turns=tuple(made), stop=stop)


TASK = Task(id="t")
GROUPS = [
    # Spread: one whole, one cut off.
    Group(task=TASK, trajectories=(episode((9, 3), (4, 2)), episode((9, 7), stop=StopReason.MAX_TURNS))),
    # Flat, and one of its members failed after a turn.
    Group(task=TASK, trajectories=(episode((9, 11)), episode((9, 13), (1, 4), stop=StopReason.ENV_FAILED))),
    # Left out by the filter; one failed before it said anything.
    Group(task=TASK, trajectories=(episode((9, 17), stop=StopReason.TIMEOUT), episode(stop=StopReason.ENV_FAILED))),
]
UPDATE = Update(
    metrics={"batch/tokens": 80, "batch/padding_share": 0.25, "batch/shared_share": 0.25},
    advantages=(((0.5,) * 3, (0.5,) * 2), ((-0.5,) * 7,), ((0.0,) * 11,), ()),
)


def test_what_episodes_said_and_read():
    assert count_played(GROUPS) == {
        "sampled": 3 + 2 + 7 + 11 + 17 + 17,
        "observation": 4 + 1,
        "truncated": 7 + 17,
        "failed": 17,
    }
    assert count_played([]) == {"sampled": 0, "observation": 0, "truncated": 0, "failed": 0}


def test_every_sampled_token_has_one_fate():
    fates = count_outcomes(GROUPS, (0, 1), UPDATE)
    assert fates == {"trained": 12, "zero_advantage": 11, "filtered": 17}
    played = count_played(GROUPS)
    assert sum(fates.values()) + played["failed"] == played["sampled"]


def test_a_step_that_learnt_nothing_filtered_everything():
    nothing = Update(metrics={"batch/tokens": 0}, advantages=())
    assert count_outcomes(GROUPS, (), nothing) == {"trained": 0, "zero_advantage": 0, "filtered": 12 + 11 + 17}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """Counts what the test says it did."""

    def __init__(self) -> None:
        self.stats = EngineStats(prefill_tokens=1000, slot_steps=1000, idle_slot_steps=900)

    def work(self, **amounts: int) -> None:
        sums = {name: getattr(self.stats, name) + amount for name, amount in amounts.items()}
        self.stats = dataclasses.replace(self.stats, **sums)


def spend(ledger: Ledger, clock: Clock, **seconds: float) -> None:
    for account, amount in seconds.items():
        with ledger.spend(account):
            clock.now += amount


def test_idle_slots_and_padding_are_split_off_by_what_was_counted_since_the_last_record():
    clock, engine = Clock(), Engine()
    ledger = Ledger(clock)
    recorder = LedgerRecorder(ledger, engine)
    spend(ledger, clock, prefill=4.0, decode=10.0, logprobs=2.0, update=6.0)
    engine.work(
        prefill_tokens=30, prefill_padding=10, reused_tokens=5, slot_steps=100, idle_slot_steps=20, decode_tokens=80
    )
    found = recorder.close_training(GROUPS, (0, 1), UPDATE)
    seconds = {name: value for name, value in found.items() if name.endswith("_seconds")}
    assert seconds == pytest.approx(
        {
            "ledger/other_seconds": 0.0,
            "ledger/prefill_seconds": 3.0,
            "ledger/decode_seconds": 8.0,
            "ledger/tail_idle_seconds": 2.0,
            "ledger/logprobs_seconds": 1.5,
            "ledger/update_seconds": 4.5,
            "ledger/padding_seconds": 1.0 + 0.5 + 1.5,
            "ledger/wall_seconds": 22.0,
        }
    )
    assert {name: value for name, value in found.items() if name.endswith("_tokens")} == {
        "ledger/prompt_computed_tokens": 30,
        "ledger/prompt_reused_tokens": 5,
        "ledger/prompt_padding_tokens": 10,
        "ledger/sampled_tokens": 57,
        "ledger/observation_tokens": 5,
        "ledger/truncated_tokens": 24,
        "ledger/failed_tokens": 17,
        "ledger/trained_tokens": 12,
        "ledger/zero_advantage_tokens": 11,
        "ledger/filtered_tokens": 17,
        "ledger/batch_padding_tokens": 20,  # a quarter of the 80 places that the 60 tokens left to read take
        "ledger/batch_shared_tokens": 20,
    }


def test_a_record_without_sampling_has_no_tokens():
    clock, engine = Clock(), Engine()
    ledger = Ledger(clock)
    recorder = LedgerRecorder(ledger, engine)
    spend(ledger, clock, checkpoint=1.5)
    assert recorder.close() == {
        "ledger/other_seconds": 0.0,
        "ledger/checkpoint_seconds": 1.5,
        "ledger/wall_seconds": 1.5,
    }


def test_an_evaluation_counts_what_it_played():
    engine = Engine()
    recorder = LedgerRecorder(Ledger(Clock()), engine)
    engine.work(prefill_tokens=18, slot_steps=12)
    found = recorder.close_evaluation(GROUPS[:1])
    assert (found["ledger/sampled_tokens"], found["ledger/truncated_tokens"]) == (12, 7)
    assert (found["ledger/prompt_computed_tokens"], found["ledger/prompt_padding_tokens"]) == (18, 0)
    assert "ledger/trained_tokens" not in found
