"""The batch: which tokens are credited and trained, how rows pack, and the way back to turns."""

import pytest
import torch
from episodes_by_hand import episode, group, turn

from turnwise.learner.batch import Batch, padding_share
from turnwise.types import StopReason

TWO_TURNS = episode(turn([1, 2], [3, 4], opens=True), turn([5, 6], [7], reward=1.0))
"""prompt 1 2 · action 3 4 · observation 5 6 · action 7, which earned 1."""
REWRITTEN = episode(turn([1], [2, 3], opens=True, reward=0.5), turn([9, 8], [7], opens=True, reward=1.0))
"""Two rows, since the conversation was rewritten before the second turn."""


def _picture(mask):
    return "".join("x" if bit else "." for bit in mask.tolist())


def test_masks_drawn():
    """prompt=12  action=34  observation=56  action=7"""
    assert _picture(Batch.of([group(TWO_TURNS)]).action) == "..xx..x"
    on = Batch.of([group(TWO_TURNS)])
    assert (_picture(on.credited), _picture(on.trained)) == ("..xx..x", "..xx..x")
    loss_off = Batch.of([group(TWO_TURNS)], action_mask=False)
    assert (_picture(loss_off.credited), _picture(loss_off.trained)) == ("..xx..x", "..xxxxx")
    credit_off = Batch.of([group(TWO_TURNS)], advantage_mask=False)
    assert (_picture(credit_off.credited), _picture(credit_off.trained)) == ("..xxxxx", "..xx..x")


def test_rows_of_a_rewritten_trajectory_stay_one_trajectory():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)], advantage_mask=False)
    assert batch.rows == 3
    assert batch.row_trajectory.tolist() == [0, 1, 1]
    assert batch.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 9, 8, 7]
    assert _picture(batch.credited) == "..xxxxx" + ".xx" + "..x"
    episodes = batch.episodes(batch.reward, None)
    assert episodes.returns().tolist() == [1.0, 1.5]
    assert episodes.trajectory.tolist() == [0] * 5 + [1] * 3
    assert episodes.turn.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]


def test_values_are_of_the_state_before_and_final_ones_of_the_state_after():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)])
    state_value = torch.arange(13.0)
    episodes = batch.episodes(batch.reward, state_value)
    assert episodes.value.tolist() == [1, 2, 5, 7, 8, 11]
    assert episodes.final_value.tolist() == [6, 12]


def test_a_trained_token_without_credit_takes_that_of_the_action_it_led_to():
    batch = Batch.of([group(TWO_TURNS)], action_mask=False)
    spread = batch.spread(torch.tensor([10.0, 20.0, 30.0]))
    assert spread[batch.trained].tolist() == [10, 20, 30, 30, 30]


def test_failed_and_moveless_trajectories_are_left_out_and_counted():
    failed = episode(turn([1], [2], opens=True, reward=9.0), stop=StopReason.ENV_FAILED)
    moveless = episode(stop=StopReason.CONTEXT_FULL)
    batch = Batch.of([group(failed, TWO_TURNS), group(moveless), group(REWRITTEN)])
    assert (batch.failed, batch.empty, batch.given) == (1, 1, 4)
    assert batch.group.tolist() == [0, 2]
    assert batch.place == (1, 3)
    assert batch.by_turn(torch.arange(13.0)) == ((), ((2, 3), (6,)), (), ((8, 9), (12,)))
    nothing = Batch.of([group(failed)])
    assert (nothing.rows, nothing.by_turn(torch.zeros(0))) == (0, ((),))


def test_truncation_is_not_termination():
    cut = episode(turn([1], [2], opens=True), stop=StopReason.MAX_TURNS)
    assert Batch.of([group(cut, TWO_TURNS)]).truncated.tolist() == [True, False]


def test_micro_batches_keep_to_the_budget_and_hold_every_trained_token_once():
    lengths = [5, 9, 2, 7, 3, 9, 4]
    batch = Batch.of([group(*(episode(turn([1], range(n - 1), opens=True)) for n in lengths))])
    micros = batch.micro_batches(14)
    assert [tuple(micro.ids.shape) for micro in micros] == [(1, 9), (1, 9), (2, 7), (3, 4)]
    assert padding_share(micros) == pytest.approx(1 - 39 / 44)
    assert sorted(torch.cat([micro.token for micro in micros]).tolist()) == batch.trained.nonzero().flatten().tolist()
    for micro in micros:
        assert micro.ids.flatten()[micro.position].tolist() == micro.target.tolist()
        assert batch.ids[micro.token].tolist() == micro.target.tolist()


def test_a_row_longer_than_the_budget_goes_alone():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)])
    assert [tuple(micro.ids.shape) for micro in batch.micro_batches(4)] == [(1, 7), (1, 3), (1, 3)]


def test_mini_batches_split_by_trajectory_and_repeat_by_seed():
    batch = Batch.of([group(*(REWRITTEN for _ in range(5)))])
    parts = batch.minibatches(2, seed=4)
    assert sorted(row for part in parts for row in part) == list(range(10))
    assert [len(part) for part in parts] == [6, 4]
    assert all({row ^ 1 for row in part} == set(part) for part in parts), "both rows of a trajectory go together"
    assert batch.minibatches(2, seed=4) == parts
    assert any(batch.minibatches(2, seed=seed) != parts for seed in range(5))
    assert len(batch.minibatches(99, seed=0)) == 5


@pytest.mark.parametrize(("mode", "expected"), [("token", [1 / 6] * 6), ("trajectory", [1 / 6] * 6)])
def test_weights_of_a_mini_batch_sum_to_one(mode, expected):
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)])
    weights = batch.weights(range(3), mode)
    assert weights[batch.trained].tolist() == pytest.approx(expected)
    assert weights[~batch.trained].tolist() == [0.0] * 7
    alone = batch.weights([1, 2], mode)
    assert alone.tolist() == pytest.approx([0.0] * 8 + [1 / 3, 1 / 3, 0.0, 0.0, 1 / 3])
