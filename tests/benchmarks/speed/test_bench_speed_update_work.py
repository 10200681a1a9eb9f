"""The measured work is what it says it is, and both ways to compute it are given the same."""

import pytest
import torch

from benchmarks.speed.update import (
    UpdateOptions,
    UpdateWorkload,
    make_update_groups,
    measure_full_logits,
    measure_update,
)
from episodes_by_hand import tiny_llama
from turnwise.learner.batch import Batch

CPU = torch.device("cpu")


def test_work_has_the_tokens_it_says():
    batch = Batch.of(make_update_groups(UpdateWorkload(rows=6, length=200, group_size=3, action_share=0.3), 17))
    assert batch.metrics()["batch/tokens"] == 6 * 200
    assert batch.metrics()["batch/action_tokens"] == 6 * 60
    assert len(set(batch.group.tolist())) == 2
    assert len({tuple(batch.ids[a : a + 40].tolist()) for a in batch.row_start[:-1]}) == 6, "prompts differ"


def test_prompts_are_alike_where_that_is_asked_for():
    work = UpdateWorkload(rows=6, length=200, group_size=3, uneven=0.5, shared_prompt=True)
    batch = Batch.of(make_update_groups(work, 17))
    assert len({tuple(batch.ids[a : a + 70].tolist()) for a in batch.row_start[:-1]}) == 2, "one of each group"
    lengths = torch.tensor(batch.row_start).diff()
    assert 100 <= int(lengths.min()) < int(lengths.max()) <= 200
    assert torch.equal(batch.ids, Batch.of(make_update_groups(work, 17)).ids), "the same every time"


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_figures_of_both_updates(precision):
    work = UpdateWorkload(rows=4, length=40, group_size=2)
    options = UpdateOptions(precision=precision, tokens_per_microbatch=80)
    for measure in (measure_update, measure_full_logits):
        model = tiny_llama(dtype=torch.float32)
        before = model.lm_head.weight.detach().clone()
        with torch.backends.mkldnn.flags(enabled=False):  # its half-precision kernels do not run on every CPU
            figures = measure(model, work, options, device=CPU, repeats=2, warmup=1)
        assert (figures["tokens"], figures["action_tokens"]) == (160, 48)
        assert figures["seconds_min"] <= figures["seconds"] <= figures["seconds_max"]
        assert figures["tokens_per_second"] == pytest.approx(160 / figures["seconds"])
        assert "peak_gigabytes" not in figures, "which is of a GPU"
        assert model.lm_head.weight.dtype == (torch.bfloat16 if precision == "bfloat16" else torch.float32)
        assert precision == "bfloat16" or not torch.equal(before, model.lm_head.weight)
