"""What is done to layers while they train: computed again, or compiled; the same gradients, and nothing left behind."""

import functools

import pytest
import torch
from episodes_by_hand import LogitTable, tiny_llama
from layout_cases import CASES, GROUPS, assert_same_gradients, learner_of, update_of
from peft import LoraConfig, get_peft_model

from turnwise.errors import ConfigError
from turnwise.learner import batch as batch_module
from turnwise.learner.layers import find_layers, recomputing
from turnwise.learner.score import hidden_states, trunk_of
from turnwise.ledger import Ledger


def _kept(model, **layout):
    """How many numbers an update keeps for its backward passes, at most."""
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    learner = learner_of(CASES["grpo"], model=model, **layout)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.update(GROUPS, seed=0)
    return sum(sizes)


@pytest.mark.parametrize("name", ["grpo", "gae"])
@pytest.mark.parametrize("packing", [True, False])
def test_layers_that_are_run_again_give_the_same_gradients(monkeypatch, name, packing):
    expected, _ = update_of(learner_of(CASES[name]))
    monkeypatch.setattr(batch_module, "_SHORT_PROMPT", 1)
    for budget in (1000, 14):
        learner = learner_of(CASES[name], packing=packing, budget=budget, checkpointing=True)
        assert_same_gradients(update_of(learner)[0], expected, 1e-8)


def test_layers_that_are_run_again_keep_less():
    deep = functools.partial(tiny_llama, num_hidden_layers=6)
    assert _kept(deep(), checkpointing=True) < 0.5 * _kept(deep())


def test_adapters_are_run_again_too():
    def adapted():
        torch.manual_seed(0)
        config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        return get_peft_model(tiny_llama(), config, autocast_adapter_dtype=False).double()

    expected, _ = update_of(learner_of(CASES["grpo"], model=adapted()))
    found, _ = update_of(learner_of(CASES["grpo"], model=adapted(), checkpointing=True, packing=True))
    assert_same_gradients(found, expected)


def test_layers_are_left_as_they_were():
    model = tiny_llama()
    learner = learner_of(CASES["grpo"], model=model, checkpointing=True)
    learner.update(GROUPS, seed=0)
    assert not any(layer.gradient_checkpointing for layer in find_layers(model))
    model.train()
    with recomputing(model):
        assert all(layer.gradient_checkpointing for layer in find_layers(model))


@pytest.mark.parametrize("option", ["compile", "checkpointing"])
def test_a_model_without_known_layers_is_refused(option):
    with pytest.raises(ConfigError, match=rf"^learner\.{option}: LogitTable has no layers [^\n]*set it to false$"):
        learner_of(CASES["grpo"], model=LogitTable(2, 3), **{option: True})


def test_compiled_layers_give_the_same_gradients(monkeypatch):
    """Traced as torch.compile traces them, but for the code that is generated, which takes a compiler and a minute."""
    expected, _ = update_of(learner_of(CASES["grpo"]))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    traced = torch._dynamo.utils.counters["stats"]
    model = tiny_llama()
    before = traced["unique_graphs"]
    learner = learner_of(CASES["grpo"], model=model, packing=True, budget=20, compile=True)
    found, _ = update_of(learner)
    assert_same_gradients(found, expected, 1e-8)
    graphs = traced["unique_graphs"] - before
    assert graphs > 0
    assert all(layer._compiled_call_impl is None for layer in find_layers(model))
    update_of(learner_of(CASES["grpo"], packing=True, budget=14, compile=True))
    learner.update(GROUPS, seed=1)
    assert traced["unique_graphs"] - before <= 2 * graphs, "other lengths are compiled once more at most"
    hidden_states(trunk_of(model), torch.tensor([[1, 2, 3]]))
    assert model.state_dict().keys() == tiny_llama().state_dict().keys()


def test_passes_before_the_update_have_an_account_of_their_own():
    class Book(Ledger):
        def spend(self, account):
            opened.append(account)
            return super().spend(account)

    opened = []
    learner_of(CASES["gae"], ledger=Book()).update(GROUPS, seed=0)
    assert opened == ["update", "logprobs", "logprobs"], "the reference's, the critic's"
    opened.clear()
    learner_of(CASES["gigpo"], ledger=Book()).update(GROUPS, seed=0)
    assert opened == ["update"]
