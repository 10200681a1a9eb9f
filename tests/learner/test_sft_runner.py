"""How SFT runs its passes, decided before the first of them."""

import pytest
import torch
from torch import nn

from episodes_by_hand import episode, group, tiny_llama, turn
from turnwise.errors import ConfigError
from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import Packing
from turnwise.learner.parallel import SINGLE
from turnwise.learner.settings import SFTSettings
from turnwise.learner.sft import SFTLearner, _make_runner, _steps_ahead


def test_only_a_gpu_computes_ahead_of_the_host():
    assert [_steps_ahead(torch.device(name)) for name in ("cpu", "cuda")] == [0, 1]


@pytest.mark.gpu
def test_a_step_is_prepared_and_launched_while_the_one_before_runs():
    """Reading a loss once waited for all that had been launched: what torch waits for unasked is an error here."""
    learner = SFTLearner(tiny_llama().to("cuda"), SFTSettings(), total_steps=9, seed=0)
    batch = Batch.of([group(episode(turn([1, 2, 3], [4, 5], opens=True)))], action_mask=True)
    for step in range(3):
        learner.step(batch, step=step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        (metrics,) = learner.step(batch, step=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert metrics["sft/loss"] > 0
    assert len(learner.finish()) == 1


def test_a_cpu_pads_rows_and_compiles_when_asked():
    plain = _make_runner(tiny_llama(), SFTSettings(tokens_per_microbatch=99), None, SINGLE, steps=1)
    assert (plain.packing, plain.compiled, plain.token_budget) == (Packing.PADDED, None, 99)
    assert plain.temperature == 1.0
    assert _make_runner(tiny_llama(), SFTSettings(compile=True), None, SINGLE, steps=1).compiled is not None


def test_chats_take_the_place_of_all_that_the_expert_is_told():
    assert SFTSettings().unread() == {}
    assert set(SFTSettings(chats="chats.jsonl").unread()) == {"demonstrations", "split", "workers"}


def test_a_model_without_layers_cannot_be_compiled():
    with pytest.raises(ConfigError, match=r"^sft\.compile: Linear has no layers of a known kind"):
        _make_runner(nn.Linear(2, 2), SFTSettings(compile=True), None, SINGLE, steps=1)
