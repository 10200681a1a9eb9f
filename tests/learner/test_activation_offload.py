"""Activation offload: tensors leave and come back, weights stay, and gradients are the same to the bit."""

import functools

import pytest
import torch

from episodes_by_hand import tiny_llama
from layout_cases import CASES, learner_of, update_of
from tiny_runs import tiny_config
from turnwise.compute import offload
from turnwise.compute.layers import activation_checkpointing, find_layers
from turnwise.compute.offload import activation_offload
from turnwise.errors import ConfigError
from turnwise.learner import forward_runner


def offloading(monkeypatch, moved):
    """Has learners on a CPU offload, as they would on a GPU, tensors of any size."""
    monkeypatch.setattr(offload, "_LEAST_BYTES", 0)
    monkeypatch.setattr(forward_runner, "_has_memory_of_its_own", lambda device: True)
    monkeypatch.setattr(forward_runner, "activation_offload", functools.partial(activation_offload, moved))


def gradients(**settings):
    learner = learner_of(CASES["gae"], **settings)
    return update_of(learner)[0]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("packing", [False, True])
def test_gradients_are_the_same_to_the_bit(monkeypatch, checkpointing, packing):
    layout = {"checkpointing": checkpointing, "packing": packing}
    expected, moved = gradients(**layout), []
    offloading(monkeypatch, moved.append)
    gradients(**layout)
    assert not moved, "it is off by default"
    found = gradients(**layout, activation_offload=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert len(moved) > 10


def saved_bytes(model, *, checkpointing):
    ids, moved = torch.arange(12).reshape(2, 6), []
    with activation_checkpointing(*([model] if checkpointing else [])), activation_offload(moved.append):
        model(input_ids=ids).logits.sum().backward()
    return moved


def test_weights_stay_and_checkpointed_layers_move_their_input_alone(monkeypatch):
    monkeypatch.setattr(offload, "_LEAST_BYTES", 0)
    model = tiny_llama()
    kept = []
    is_weight = offload._is_weight
    monkeypatch.setattr(offload, "_is_weight", lambda tensor: is_weight(tensor) and (kept.append(1) or True))
    everything = saved_bytes(model, checkpointing=False)
    matrices = sum(p.dim() == 2 for p in model.parameters()) - 1  # an embedding saves no weight
    assert len(kept) >= matrices
    inputs = saved_bytes(model, checkpointing=True)
    hidden = 12 * model.config.hidden_size * 8
    assert inputs.count(hidden) >= len(find_layers(model))
    assert sum(inputs) < sum(everything) / 2


def test_small_tensors_are_not_worth_a_copy():
    assert saved_bytes(tiny_llama(), checkpointing=False) == []


def test_a_cpu_has_them_in_its_memory_anyway(monkeypatch):
    monkeypatch.setattr(forward_runner, "activation_offload", lambda: pytest.fail("it was copied"))
    gradients(activation_offload=True)


def test_compiled_layers_cannot_be_offloaded():
    with pytest.raises(ConfigError, match=r"^learner\.compile: what compiled layers save cannot be offloaded"):
        tiny_config(learner={"compile": "layers", "activation_offload": True})


def test_rounded_copies_of_weights_are_not_moved():
    """Under autocast, layers that do not run again save them, and they are as large as the model."""
    with pytest.raises(ConfigError, match="a copy of all weights would be moved"):
        tiny_config(model={"autocast": True}, learner={"activation_offload": True})
    tiny_config(model={"autocast": True}, learner={"activation_offload": True, "checkpointing": True})
