"""Micro-batches of half the size where the device is full: how small they get, and what a checkpoint says of it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from episodes_by_hand import episode, group, turn
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.parallel import SINGLE, SingleProcess
from turnwise.learner.shrinking import restore_shrunk, run_or_shrink, shrink_runner, shrunk_state

ROWS = Batch.of([group(episode(turn([1, 2], [3, 4], opens=True)), episode(turn([1, 2], [3], opens=True)))])
"""Rows of four tokens and of three."""


def runner(tokens, parallel=SINGLE):
    return ForwardRunner(
        device=torch.device("cpu"), autocast=None, temperature=1.0, token_budget=tokens, parallel=parallel
    )


MANY = Batch.of(4 * [group(episode(turn([1, 2], [3, 4], opens=True)), episode(turn([1, 2], [3], opens=True)))])
"""Eight rows, 32 tokens when they are padded."""


@pytest.mark.parametrize(
    ("batch", "tokens", "then"),
    [(MANY, 32, 16), (MANY, 16, 8), (MANY, 9, 4), (MANY, 5, 4), (MANY, 1024, 16), (ROWS, 16, 4)],
)
def test_a_budget_is_halved_until_not_all_rows_fit_and_holds_the_longest_row(batch, tokens, then, caplog):
    module = nn.Linear(2, 2)
    module(torch.ones(2)).sum().backward()
    full = torch.OutOfMemoryError("full")
    assert shrink_runner(runner(tokens), batch, full, module, setting="learner.x").token_budget == then
    assert all(weight.grad is None for weight in module.parameters()), "of the pass that failed"
    assert f"learner.x is {then} from here on, it was {tokens}" in caplog.text


@pytest.mark.parametrize(("device", "emptied"), [("cpu", 0), ("cuda", 1)])
def test_what_a_gpu_keeps_for_later_is_given_back_first(device, emptied, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(1))
    full = replace(runner(16), device=torch.device(device))
    shrink_runner(full, ROWS, torch.OutOfMemoryError("full"), setting="x")
    assert len(calls) == emptied


@pytest.mark.parametrize("tokens", [4, 3])
def test_one_row_at_a_time_is_as_small_as_it_gets(tokens):
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        shrink_runner(runner(tokens), ROWS, torch.OutOfMemoryError("full"), setting="x")


def test_a_rank_among_others_shrinks_nothing():
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        shrink_runner(runner(16, SingleProcess()), ROWS, torch.OutOfMemoryError("full"), setting="x")


def test_work_is_done_again_after_each_shrinking():
    sizes = [4]

    def work():
        if sizes[-1] > 1:
            raise torch.OutOfMemoryError("full")
        return "done"

    assert run_or_shrink(work, lambda error: sizes.append(sizes[-1] // 2)) == "done"
    assert sizes == [4, 2, 1]


def test_a_run_goes_on_with_the_size_it_had_unless_another_is_asked_for():
    state = shrunk_state(16, runner(4))
    assert state == {"microbatch": {"asked": 16, "tokens": 4}}
    assert shrunk_state(16, runner(16)) == {}
    assert restore_shrunk(16, runner(16), state).token_budget == 4
    assert restore_shrunk(32, runner(32), state).token_budget == 32, "it was asked for anew"
    assert restore_shrunk(16, runner(16), {}).token_budget == 16
