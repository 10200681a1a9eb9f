"""Adapters: fixed by the seed, merged without touching the frozen weights, resumed bit for bit."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.errors import ModelError
from turnwise.models.loading import ModelSettings, load_model, load_weights, save_model
from turnwise.models.lora import LoraSettings, add_lora, merged_weights
from turnwise.models.small import SmallSettings

pytest.importorskip("peft")

TINY = SmallSettings(layers=2, width=16, heads=2, positions=64, vocabulary=300)
LORA = LoraSettings(rank=2, alpha=4.0)
IDS = torch.tensor([[5, 17, 200, 3, 41, 260]])


def load(lora=LORA, seed=0, dtype="float32"):
    return load_model(
        ModelSettings(small=TINY, lora=lora, dtype=dtype, device="cpu"), seed=seed, texts=lambda: ("a b",)
    )


def trained(**options):
    """A model whose adapters have moved, as after some steps."""
    loaded = load(**options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return loaded


def frozen(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}


def test_only_adapters_train_and_the_policy_starts_as_the_model():
    adapted, plain = load(), load(lora=None)
    assert torch.equal(adapted.model(IDS).logits, plain.model(IDS).logits)
    training = [name for name, weight in adapted.model.named_parameters() if weight.requires_grad]
    assert len(training) == 2 * 7 * TINY.layers  # A and B of q, k, v, o, gate, up, down
    assert all(".lora_" in name for name in training)


def test_adapters_come_from_the_seed_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load(seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    same, other = (merged_parts(load(seed=seed).model) for seed in (3, 4))
    for name, weight in merged_parts(first.model).items():
        assert torch.equal(weight, same[name])
        assert not torch.equal(weight, other[name])


def merged_parts(model):
    return {name: weight for name, weight in model.named_parameters() if ".lora_A" in name}


def test_disabled_adapters_are_the_frozen_reference():
    model = trained().model
    with model.disable_adapter():
        reference = model(IDS).logits
    assert torch.equal(reference, load(lora=None).model(IDS).logits)
    assert not torch.allclose(model(IDS).logits, reference, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_peft_s_own_and_leave_the_model_alone(dtype):
    model = trained(dtype=dtype).model
    before = frozen(model)
    merged = merged_weights(model)
    for name, weight in frozen(model).items():
        assert torch.equal(weight, before[name])
    reference = model.merge_and_unload().state_dict()
    assert merged.keys() == reference.keys()
    for name, weight in merged.items():
        assert weight.dtype == reference[name].dtype
        assert torch.equal(weight, reference[name])


def test_without_adapters_merged_weights_are_the_model_s_own():
    model = load(lora=None).model
    merged = merged_weights(model)
    assert merged.keys() == model.state_dict().keys()
    assert all(torch.equal(merged[name], weight) for name, weight in model.state_dict().items())


def test_saved_folder_is_the_merged_policy(tmp_path):
    loaded = trained()
    before = loaded.model(IDS).logits
    save_model(loaded.model, loaded.tokenizer, tmp_path)
    assert torch.equal(loaded.model(IDS).logits, before)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.allclose(merged(IDS).logits, before, atol=1e-5)
    assert not torch.allclose(before, load(lora=None).model(IDS).logits, atol=1e-3)
    assert AutoTokenizer.from_pretrained(tmp_path).encode("a b") == loaded.tokenizer.encode("a b")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resumed_adapters_are_exact_and_in_place(tmp_path, dtype):
    loaded = trained(dtype=dtype)
    save_model(loaded.model, loaded.tokenizer, tmp_path)
    resumed = load(dtype=dtype).model
    held = list(resumed.parameters())
    load_weights(resumed, tmp_path)
    for kept, (name, weight) in zip(held, resumed.named_parameters(), strict=True):
        assert weight is kept
        assert torch.equal(weight, loaded.model.get_parameter(name))
        assert weight.dtype == (torch.float32 if ".lora_" in name else getattr(torch, dtype))


def test_adapters_of_another_rank_or_none_at_all_are_refused(tmp_path):
    loaded, plain = load(), load(lora=None)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "rank2")
    save_model(plain.model, plain.tokenizer, tmp_path / "plain")
    wider = load(lora=LoraSettings(rank=3)).model
    with pytest.raises(ModelError, match="has other shapes"):
        load_weights(wider, tmp_path / "rank2")
    with pytest.raises(ModelError, match="holds no adapter"):
        load_weights(wider, tmp_path / "plain")


def test_targets_choose_the_layers():
    model = load(lora=LoraSettings(rank=2, targets=("q_proj", "v_proj"))).model
    adapted = {name.split(".lora_A")[0].rsplit(".", 1)[1] for name in merged_parts(model)}
    assert adapted == {"q_proj", "v_proj"}


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head", "input_layernorm", "query"])
def test_targets_outside_the_blocks_are_refused(target):
    model = load(lora=None).model
    with pytest.raises(ModelError, match=f"'{target}' is no linear layer of the model's blocks"):
        add_lora(model, LoraSettings(targets=("q_proj", target)), seed=0)


def test_absent_peft_is_said_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    settings = ModelSettings(name="./none", lora=LORA, device="cpu")
    with pytest.raises(ModelError, match=r"^model\.lora needs the peft package.*pip install turnwise\[lora\]$"):
        load_model(settings, seed=0, texts=tuple)
