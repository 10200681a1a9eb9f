"""The batch: which tokens are credited and trained, how rows pack, and the way back to turns."""

import pytest
import torch

from episodes_by_hand import episode, group, turn
from turnwise.credit.gae import gae
from turnwise.learner.batch import Batch
from turnwise.learner.parallel import SINGLE, DataParallel
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
    episodes = batch.credited_tokens(batch.reward, None)
    assert episodes.returns().tolist() == [1.0, 1.5]
    assert episodes.trajectory.tolist() == [0] * 5 + [1] * 3
    assert episodes.turn.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]


def test_values_are_of_the_state_before():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)])
    episodes = batch.credited_tokens(batch.reward, torch.arange(13.0))
    assert episodes.value.tolist() == [1, 2, 5, 7, 8, 11]


CUT_OFF = episode(turn([1, 2], [3], opens=True), turn([4], [5, 6]), stop=StopReason.MAX_TURNS, tail=(8, 9))
"""prompt 1 2 · action 3 · observation 4 · action 5 6 · and 8 9, which nobody answered."""


@pytest.mark.parametrize("mask", [True, False])
def test_a_tail_is_never_credited_nor_trained(mask):
    batch = Batch.of([group(CUT_OFF, TWO_TURNS)], advantage_mask=mask, action_mask=mask)
    assert batch.ids.tolist() == [1, 2, 3, 4, 5, 6, 8, 9, *range(1, 8)]
    drawn = "..x.xx.." if mask else "..xxxx.."
    assert (_picture(batch.credited)[:8], _picture(batch.trained)[:8]) == (drawn, drawn)
    assert _picture(batch.tail) == "......xx" + "......."
    said = batch.spread(torch.arange(1.0, 1 + batch.credited.sum()))
    assert said[:8].tolist() == ([1, 1, 1, 2, 2, 3, 0, 0] if mask else [1, 1, 1, 2, 3, 4, 0, 0])
    weights = batch.weights([0, 1], "token")
    assert weights[batch.tail].tolist() == [0.0, 0.0]
    assert Batch.of([group(CUT_OFF)], tails=False).ids.tolist() == [1, 2, 3, 4, 5, 6]


def test_the_bootstrap_is_taken_where_the_next_action_would_have_been_chosen():
    batch = Batch.of([group(CUT_OFF, TWO_TURNS)])
    episodes = batch.credited_tokens(batch.reward, torch.arange(15.0))
    assert episodes.final_value[0] == 7
    assert episodes.value.tolist() == [1, 3, 4, 9, 10, 13]


def test_without_a_tail_the_last_token_leaves_nothing_unexpected():
    """After an action no other is chosen, so a critic has learnt nothing there: its word would count a reward twice."""
    cut = episode(turn([1, 2], [3], opens=True), turn([4], [5, 6], reward=1.0), stop=StopReason.CONTEXT_FULL)
    batch = Batch.of([group(cut)])
    tokens = batch.credited_tokens(batch.reward, torch.tensor([9.0, 2.0, 9.0, 2.0, 1.9, 1.9]))
    assert tokens.value.tolist() == pytest.approx([2.0, 2.0, 1.9])
    assert tokens.final_value.tolist() == pytest.approx([0.9]), "1.9 was expected, and 1 of it was paid"
    advantage = gae(tokens, gamma=1.0, lam=0.0, whiten=False).advantage
    assert advantage.tolist() == pytest.approx([0, -0.1, 0], abs=1e-6)


def test_states_are_told_apart_by_key_and_group():
    def play(*keys, **kwargs):
        return episode(*(turn([1], [2, 3], opens=i == 0, key=key) for i, key in enumerate(keys)), **kwargs)

    cut = play("b", "a", stop=StopReason.MAX_TURNS, tail=(4,))
    batch = Batch.of([group(play("a", "b", "a"), cut), group(play("a", None))])
    assert batch.credited_tokens(batch.reward, None).state.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 2, 2, -1, -1]
    assert batch.state[batch.tail].tolist() == [-1], "nobody knows what the next turn would have been played in"
    failed = play("z", stop=StopReason.ENV_FAILED)
    assert Batch.of([group(failed, play("a"))]).state.tolist() == [0, 0, 0]
    assert Batch.of([group(TWO_TURNS)]).credited_tokens(torch.zeros(7), None).state is None


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
    three = Batch.of([group(REWRITTEN, failed, REWRITTEN, TWO_TURNS)])
    assert three.by_turn(torch.arange(19.0)) == (((1, 2), (5,)), (), ((7, 8), (11,)), ((14, 15), (18,)))
    nothing = Batch.of([group(failed)])
    assert (nothing.rows, nothing.by_turn(torch.zeros(0))) == (0, ((),))


def test_a_batch_is_as_old_as_its_oldest_turn():
    def play(*versions):
        return episode(*(turn([1], [2], opens=place == 0, version=v) for place, v in enumerate(versions)))

    failed = episode(turn([1], [2], opens=True, version=1), stop=StopReason.ENV_FAILED)
    assert Batch.of([group(play(5, 6), failed), group(play(4, 6), play(7))]).oldest_version == 4


def test_truncation_is_not_termination():
    cut = episode(turn([1], [2], opens=True), stop=StopReason.MAX_TURNS)
    assert Batch.of([group(cut, TWO_TURNS)]).truncated.tolist() == [True, False]


def test_micro_batches_keep_to_the_budget_and_hold_every_trained_token_once():
    lengths = [5, 9, 2, 7, 3, 9, 4]
    batch = Batch.of([group(*(episode(turn([1], range(n - 1), opens=True)) for n in lengths))])
    micros = batch.micro_batches(14)
    assert [tuple(micro.ids.shape) for micro in micros] == [(1, 9), (1, 9), (2, 7), (3, 4)]
    assert sorted(torch.cat([micro.token for micro in micros]).tolist()) == batch.trained.nonzero().flatten().tolist()
    for micro in micros:
        assert micro.ids.flatten()[micro.position].tolist() == micro.target.tolist()
        assert batch.ids[micro.token].tolist() == micro.target.tolist()


def test_a_row_longer_than_the_budget_goes_alone():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)])
    assert [tuple(micro.ids.shape) for micro in batch.micro_batches(4)] == [(1, 7), (1, 3), (1, 3)]


def test_the_longest_row_is_counted_in_tokens_and_no_rows_have_none():
    two = group(episode(turn([1, 2], [3], opens=True), turn([4], [5, 6])), episode(turn([1], [2], opens=True)))
    assert Batch.of([two]).longest_row == 6
    assert Batch.of([]).longest_row == 0


def test_packed_rows_lie_end_to_end_and_count_their_own_places():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN, CUT_OFF)])
    micros = batch.micro_batches(15, packing=True)
    assert [micro.ids.tolist() for micro in micros] == [
        [[1, 2, 3, 4, 5, 6, 8, 9, 1, 2, 3, 4, 5, 6, 7]],
        [[1, 2, 3, 9, 8, 7]],
    ]
    assert [micro.positions.tolist() for micro in micros] == [[[*range(8), *range(7)]], [[0, 1, 2, 0, 1, 2]]]
    assert [micro.tokens for micro in micros] == [15, 6]
    assert sorted(torch.cat([micro.token for micro in micros]).tolist()) == batch.trained.nonzero().flatten().tolist()
    for micro in micros:
        assert micro.ids.flatten()[micro.position].tolist() == micro.target.tolist()
        assert micro.positions.flatten()[micro.position].min() > 0, "what predicts a token is in its row"
    assert all(micro.positions is None for micro in batch.micro_batches(15))


@pytest.mark.parametrize("packing", [True, False])
def test_trajectories_kept_whole_stay_in_one_micro_batch(packing):
    batch = Batch.of([group(REWRITTEN, TWO_TURNS, REWRITTEN, REWRITTEN)])
    for budget in (1, 8, 13, 100):
        micros = batch.micro_batches(budget, packing=packing, whole_trajectories=True)
        owners = [set(batch.trajectory[micro.token].tolist()) for micro in micros]
        assert sorted(one for held in owners for one in held) == [0, 1, 2, 3]
        assert all(len(held) == 1 or micro.ids.numel() <= budget for held, micro in zip(owners, micros, strict=True))
    assert len(batch.micro_batches(1, packing=packing, whole_trajectories=True)) == 4
    assert len(batch.micro_batches(1, packing=packing)) == 7


@pytest.mark.parametrize("world", [1, 2, 3, 9])
def test_shares_are_whole_trajectories_and_about_as_long(world):
    lengths = [9, 2, 5, 5, 3, 2]
    plain = [episode(turn([1], range(n - 1), opens=True)) for n in lengths]
    batch = Batch.of([group(*plain, REWRITTEN)])
    shares = [batch.share(range(batch.rows), DataParallel(rank=rank, world=world)) for rank in range(world)]
    assert sorted(row for share in shares for row in share) == list(range(8)), "each row once, and no row twice"
    assert sum({6, 7} <= set(share) for share in shares) == 1
    tokens = [sum(batch.row_start[row + 1] - batch.row_start[row] for row in share) for share in shares]
    assert (
        sorted(tokens, reverse=True) == {1: [32], 2: [16, 16], 3: [11, 11, 10], 9: [9, 6, 5, 5, 3, 2, 2, 0, 0]}[world]
    )


def test_a_share_is_of_the_rows_that_are_asked_about():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN, TWO_TURNS)])
    assert [batch.share([1, 2, 3], DataParallel(rank=rank, world=2)) for rank in range(2)] == [[3], [1, 2]]
    assert batch.share([3, 1, 2], SINGLE) == [1, 2, 3], "one process runs them all"


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
    some = batch.weights(range(3), mode, among=torch.arange(13) != 2)
    assert some[batch.trained].tolist() == pytest.approx(
        [0, *([0.2] * 5 if mode == "token" else [1 / 4] * 2 + [1 / 6] * 3)]
    )
    alone = batch.weights([1, 2], mode)
    assert alone.tolist() == pytest.approx([0.0] * 8 + [1 / 3, 1 / 3, 0.0, 0.0, 1 / 3])


def test_a_fixed_length_takes_the_place_of_the_tokens_there_are():
    batch = Batch.of([group(TWO_TURNS, REWRITTEN)])
    weights = batch.weights(range(3), "fixed", fixed_length=10)
    assert weights[batch.trained].tolist() == pytest.approx([1 / 20] * 6)
    assert batch.weights([0], "fixed", fixed_length=10)[batch.trained].tolist() == pytest.approx([0.1] * 3 + [0] * 3)


def _long(prompt, *turns):
    """An episode whose prompt is long enough to share; the rest is read and said by turns."""
    moves = [turn(prompt if place == 0 else read, said, opens=place == 0) for place, (read, said) in enumerate(turns)]
    return episode(*moves)


ONE, OTHER = list(range(100, 140)), list(range(200, 240))
"""Two prompts of forty tokens."""


def test_equal_prompts_are_laid_out_once():
    """Rows of forty tokens and a few, of two groups, and what is left of each when its prompt is in another."""
    groups = [
        group(_long(ONE, ([], [1, 2]), ([3], [4])), _long(ONE, ([], [5])), _long(ONE, ([], [6, 7, 8]))),
        group(_long(OTHER, ([], [9])), episode(turn([1, 2], [3], opens=True))),
    ]
    batch = Batch.of(groups)
    (micro,) = batch.micro_batches(1000, packing=True, share_prompts=True)
    assert micro.ids.tolist() == [[*ONE, 1, 2, 3, 4, 6, 7, 8, 5, *OTHER, 9, 1, 2, 3]]
    assert micro.positions.tolist() == [[*range(44), 40, 41, 42, 40, *range(41), 0, 1, 2]]
    assert (micro.tokens, micro.shared) == (92, 80)
    assert micro.target.tolist() == [1, 2, 4, 6, 7, 8, 5, 9, 3]
    assert micro.ids.flatten()[micro.position].tolist() == micro.target.tolist()
    assert micro.ids.flatten()[micro.before].tolist() == [139, 1, 3, 139, 6, 7, 139, 239, 2]
    assert batch.ids[micro.token].tolist() == micro.target.tolist()


def test_every_token_of_a_row_is_found_in_a_shared_layout():
    groups = [group(*(_long(ONE, ([], [n]), ([n], [n + 1] * n)) for n in range(1, 6)))]
    batch = Batch.of(groups)
    for budget in (1000, 90, 1):
        micros = batch.micro_batches(budget, packing=True, share_prompts=True, select=torch.ones_like(batch.action))
        found = torch.zeros_like(batch.ids)
        for micro in micros:
            assert len(micro.positions[0]) <= max(budget, 47)
            found[micro.token] = micro.ids.flatten()[micro.position]
            follows = micro.positions.flatten()[micro.before] + 1 == micro.positions.flatten()[micro.position]
            opens = micro.positions.flatten()[micro.position] == 0
            assert bool((follows | opens).all()), "what predicts a token is one before it in its row"
        assert torch.equal(found, batch.ids)
    assert [micro.shared for micro in batch.micro_batches(1, packing=True, share_prompts=True)] == [0] * 5


def test_short_prompts_are_not_worth_sharing():
    batch = Batch.of([group(_long(ONE[:31], ([], [1])), _long(ONE[:31], ([], [2])))])
    (micro,) = batch.micro_batches(1000, packing=True, share_prompts=True)
    assert micro.shared == 0


def test_rows_of_one_trajectory_stay_together_though_others_share_their_prompts():
    rewritten = episode(turn(ONE, [1], opens=True), turn(OTHER, [2], opens=True))
    batch = Batch.of([group(rewritten, rewritten), group(_long(ONE, ([], [3])))])
    micros = batch.micro_batches(1000, packing=True, share_prompts=True, whole_trajectories=True)
    assert [micro.ids.tolist() for micro in micros] == [[[*ONE, 1, 1, 3, *OTHER, 2, 2]]]
    alone = batch.micro_batches(82, packing=True, share_prompts=True, whole_trajectories=True)
    assert sorted(micro.target.tolist() for micro in alone) == [[1, 2], [1, 2], [3]]
