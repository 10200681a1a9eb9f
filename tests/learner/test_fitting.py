"""Micro-batches of half the size where the device is full: how small they get, and what a checkpoint says of it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from episodes_by_hand import episode, group, turn
from turnwise.learner.batch import Batch
from turnwise.learner.fitting import (
    fitted_state,
    grow_runner,
    restore_fitted,
    run_or_shrink,
    shrink_runner,
    watch_memory,
)
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.parallel import SINGLE, SingleProcess
from turnwise.learner.settings import LearnerSettings, SFTSettings

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
    shrunk = replace(runner(4), most_tokens=4)
    state = fitted_state(16, 16, shrunk)
    assert state == {"microbatch": {"asked": 16, "tokens": 4, "most": 4}}
    assert fitted_state(16, 16, runner(16)) == {}
    assert restore_fitted(16, runner(16), state) == shrunk
    assert restore_fitted(32, runner(32), state).token_budget == 32, "it was asked for anew"
    assert restore_fitted(16, runner(16), {}).token_budget == 16
    older = {"microbatch": {"asked": 16, "tokens": 4}}
    assert restore_fitted(16, runner(16), older) == shrunk, "a checkpoint from before sizes could grow"


class Gpu:
    """A GPU's allocator: 100 bytes, of which 10 are another program's and 20 hold the model."""

    def __init__(self, monkeypatch, *, taken):
        self.resets = 0
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 20 + taken)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40, 100))

    def _reset(self, device):
        self.resets += 1


ON_GPU = replace(runner(16), device=torch.device("cuda"), most_tokens=64)


@pytest.mark.parametrize(("taken", "then"), [(10, 32), (28, 32), (29, 16), (60, 16)])
def test_micro_batches_grow_where_twice_as_much_fits_with_a_fifth_to_spare(taken, then, monkeypatch):
    """Of the 70 bytes beside the model, 56 may be taken."""
    gpu = Gpu(monkeypatch, taken=taken)
    grown = grow_runner(ON_GPU, MANY, watch_memory(ON_GPU))
    assert (grown.token_budget, gpu.resets) == (then, 1)


def test_they_grow_to_the_most_that_pays_and_only_where_a_batch_fills_them(monkeypatch):
    Gpu(monkeypatch, taken=1)
    most = replace(ON_GPU, token_budget=24, most_tokens=32)
    assert grow_runner(most, MANY, watch_memory(most)).token_budget == 32
    small = replace(ON_GPU, token_budget=len(MANY.ids))
    assert grow_runner(small, MANY, watch_memory(small)) == small, "one micro-batch holds it all"


@pytest.mark.parametrize(
    "stays",
    [
        runner(16),
        replace(ON_GPU, device=torch.device("cpu")),
        replace(ON_GPU, most_tokens=16),
        replace(ON_GPU, parallel=SingleProcess()),
    ],
    ids=["asked for", "on a CPU", "as large as it gets", "one of several ranks"],
)
def test_others_stay_and_nothing_is_measured(stays):
    assert watch_memory(stays) is None
    assert grow_runner(stays, MANY, None) is stays


def test_what_had_to_shrink_grows_no_more(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    shrunk = shrink_runner(ON_GPU, MANY, torch.OutOfMemoryError("full"), setting="x")
    assert (shrunk.token_budget, shrunk.most_tokens) == (8, 8)
    assert watch_memory(shrunk) is None


@pytest.mark.parametrize("settings", [LearnerSettings, SFTSettings])
def test_sizes_that_are_asked_for_are_kept_and_others_begin_small(settings):
    assert (settings().first_microbatch, settings().largest_microbatch) == (16384, 65536)
    asked = settings(tokens_per_microbatch=99)
    assert (asked.first_microbatch, asked.largest_microbatch) == (99, 99)
